//! The kernels on slices: no aliasing to think of, and lengths are checked.

use core::ptr;

use crate::backend::Backend;
use crate::recovery::Row;

impl Backend {
    /// `dst` = XOR of `srcs`, all equally long.
    ///
    /// # Panics
    ///
    /// If there is no source, or lengths differ.
    pub fn xor(self, dst: &mut [u8], srcs: &[&[u8]]) {
        let len = dst.len();
        with_each(
            srcs,
            ptr::null(),
            |src| block(src, len),
            |srcs| {
                // SAFETY: slices of `len` bytes each; `dst` is exclusive.
                unsafe { self.xor_raw(dst.as_mut_ptr(), srcs, len) };
                self.fence_if_cold();
            },
        );
    }

    /// `dst` ^= XOR of `srcs`, all equally long.
    ///
    /// # Panics
    ///
    /// If lengths differ.
    pub fn xor_in_place(self, dst: &mut [u8], srcs: &[&[u8]]) {
        let (len, to) = (dst.len(), dst.as_mut_ptr());
        let all = core::iter::once(to.cast_const()).chain(srcs.iter().map(|src| block(src, len)));
        let all: Vec<*const u8> = all.collect();
        // SAFETY: slices of `len` bytes each; `dst` is exclusive and is used in place.
        unsafe { self.xor_raw(to, &all, len) }
    }

    /// P and Q, each if wanted, of `data`: blocks with their exponents, ascending, gaps allowed; all equally long.
    ///
    /// # Panics
    ///
    /// If there is no data, lengths differ, or exponents do not ascend below 255.
    pub fn pq(self, p: Option<&mut [u8]>, q: Option<&mut [u8]>, data: &[(&[u8], u8)]) {
        let len = data.first().map_or(0, |first| first.0.len());
        let (p, q) = (p.map(|p| output(p, len)), q.map(|q| output(q, len)));
        with_each(
            data,
            (ptr::null(), 0),
            |&(src, k)| (block(src, len), k),
            |data| {
                // SAFETY: slices of `len` bytes each; P and Q are exclusive.
                unsafe { self.pq_raw(p, q, data, len) };
                self.fence_if_cold();
            },
        );
    }

    /// Adds changes to P and Q, each if wanted, in place: `deltas` are old content, new content and exponent; all equally
    /// long.
    ///
    /// # Panics
    ///
    /// If lengths differ.
    pub fn pq_update(self, p: Option<&mut [u8]>, q: Option<&mut [u8]>, deltas: &[(&[u8], &[u8], u8)]) {
        let len = deltas.first().map_or(0, |first| first.0.len());
        if deltas.is_empty() {
            return;
        }
        let (p, q) = (p.map(|p| output(p, len)), q.map(|q| output(q, len)));
        let pointers = |&(old, new, k): &(&[u8], &[u8], u8)| (block(old, len), block(new, len), k);
        with_each(deltas, (ptr::null(), ptr::null(), 0), pointers, |deltas| {
            // SAFETY: slices of `len` bytes each; P and Q are exclusive.
            unsafe { self.pq_update_raw(p, q, deltas, len) }
        });
    }

    /// Each output = Σ coefficient·source, with a coefficient for every source; all blocks equally long. At most
    /// [`OUTS_MAX`](crate::raw::OUTS_MAX) outputs.
    ///
    /// # Panics
    ///
    /// If counts or lengths differ, or there are too many outputs.
    pub fn combine(self, outs: &mut [(&mut [u8], &[u8])], srcs: &[&[u8]]) {
        let len = outs.first().map_or(0, |first| first.0.len());
        let outs: Vec<(*mut u8, &[u8])> = outs.iter_mut().map(|(dst, row)| (output(dst, len), *row)).collect();
        with_each(
            srcs,
            ptr::null(),
            |src| block(src, len),
            |srcs| {
                // SAFETY: slices of `len` bytes each; the outputs are exclusive.
                unsafe { self.combine_raw(&outs, srcs, len) }
            },
        );
    }

    /// Lost blocks from the survivors, by the rows that [`recovery`](crate::recovery) gives; all blocks equally long.
    ///
    /// # Panics
    ///
    /// If lengths differ, or the exponents of `data` do not ascend below 255.
    pub fn recover(self, outs: &mut [(&mut [u8], Row)], p: Option<&[u8]>, q: Option<&[u8]>, data: &[(&[u8], u8)]) {
        let len = outs.first().map_or(0, |first| first.0.len());
        let outs: Vec<(*mut u8, Row)> = outs.iter_mut().map(|(dst, row)| (output(dst, len), *row)).collect();
        if outs.is_empty() {
            return;
        }
        let (p, q) = (p.map(|p| block(p, len)), q.map(|q| block(q, len)));
        with_each(
            data,
            (ptr::null(), 0),
            |&(src, k)| (block(src, len), k),
            |data| {
                // SAFETY: slices of `len` bytes each; the outputs are exclusive.
                unsafe { self.recover_raw(&outs, p, q, data, len) }
            },
        );
    }
}

fn block(src: &[u8], len: usize) -> *const u8 {
    assert_eq!(src.len(), len, "blocks of one row are equally long");
    src.as_ptr()
}

fn output(dst: &mut [u8], len: usize) -> *mut u8 {
    assert_eq!(dst.len(), len, "blocks of one row are equally long");
    dst.as_mut_ptr()
}

/// Turns slices into pointers, without allocating for arrays of usual width.
fn with_each<T, U: Copy>(items: &[T], blank: U, convert: impl Fn(&T) -> U, act: impl FnOnce(&[U])) {
    let mut few = [blank; 32];
    match few.get_mut(..items.len()) {
        Some(few) => {
            few.iter_mut().zip(items).for_each(|(to, item)| *to = convert(item));
            act(few);
        }
        None => act(&items.iter().map(convert).collect::<Vec<U>>()),
    }
}
