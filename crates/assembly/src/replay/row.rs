//! One row of blocks across all slots: as it is on the members, with what is lost of it, and as it will be.

use std::collections::BTreeMap;

use raidus_layout::{ParityGeometry, Row};
use raidus_parity::{Lost, recovery};
use raidus_units::{Sector, Sectors, Slot};

use super::{Disks, source};
use crate::decision::{Assembled, Seated};

/// The parities of a row.
pub(super) struct Parities {
    pub(super) p: Vec<u8>,
    pub(super) q: Option<Vec<u8>>,
}

/// Whether data that is not in `new` has to be reconstructed from parity to know the whole row.
pub(super) fn needs_parity(
    members: &[Seated],
    geometry: &ParityGeometry,
    component: Sector,
    len: Sectors,
    is_new: impl Fn(u16) -> bool,
) -> bool {
    let row = geometry.row(geometry.row_at(component).0);
    (0..geometry.data_disks()).any(|i| !is_new(i) && source(members, row.data(i), component, len).is_none())
}

/// The parities that the row has with `new` in it, by data index. `None` if more is lost than parity can tell.
pub(super) fn parities_with<D: Disks>(
    assembled: &Assembled,
    geometry: &ParityGeometry,
    component: Sector,
    new: &BTreeMap<u16, Vec<u8>>,
    disks: &mut D,
) -> Result<Option<Parities>, D::Error> {
    let row = geometry.row(geometry.row_at(component).0);
    let bytes = new.values().next().map_or(0, Vec::len);
    let len = Sectors::from_bytes_floor(bytes as u64);
    let mut read = |slot: Slot| -> Result<Option<Vec<u8>>, D::Error> {
        let Some(member) = source(&assembled.members, slot, component, len) else { return Ok(None) };
        let mut block = vec![0; bytes];
        disks.read(member.candidate, member.place(component), &mut block)?;
        Ok(Some(block))
    };
    let mut data: Vec<Option<Vec<u8>>> = vec![None; usize::from(geometry.data_disks())];
    if needs_parity(&assembled.members, geometry, component, len, |i| new.contains_key(&i)) {
        for (i, block) in (0..).zip(&mut data) {
            *block = read(row.data(i))?;
        }
        let p = read(row.p())?;
        let q = row.q().map(&mut read).transpose()?.flatten();
        if reconstruct(&row, &mut data, p.as_deref(), q.as_deref(), bytes).is_none() {
            return Ok(None);
        }
    }
    for (i, block) in (0..).zip(&mut data) {
        match new.get(&i) {
            Some(written) => *block = Some(written.clone()),
            None if block.is_none() => *block = read(row.data(i))?,
            None => {}
        }
    }
    let whole: Option<Vec<Vec<u8>>> = data.into_iter().collect();
    Ok(whole.map(|data| compute(&row, &data, bytes)))
}

/// Fills in what is lost of the data.
fn reconstruct(
    row: &Row,
    data: &mut [Option<Vec<u8>>],
    p: Option<&[u8]>,
    q: Option<&[u8]>,
    bytes: usize,
) -> Option<()> {
    let lost: Vec<u16> = (0..).zip(data.iter()).filter(|(_, d)| d.is_none()).map(|(i, _)| i).collect();
    let exponent = |i: u16| row.coefficient(i);
    let lost_of = |lost| recovery::recover(lost);
    let (rows, p, q) = match (lost.as_slice(), p, q) {
        ([], ..) => return Some(()),
        ([x], Some(p), _) => (vec![lost_of(Lost::Data(exponent(*x)))?.0], Some(p), None),
        ([x], None, Some(q)) => (vec![lost_of(Lost::DataP(exponent(*x)))?.0], None, Some(q)),
        ([x, y], Some(p), Some(q)) => {
            let (first, second) = lost_of(Lost::DataData(exponent(*x), exponent(*y)))?;
            (vec![first, second?], Some(p), Some(q))
        }
        _ => return None,
    };
    let mut found = vec![vec![0; bytes]; lost.len()];
    {
        let mut outs: Vec<(&mut [u8], recovery::Row)> = found.iter_mut().map(Vec::as_mut_slice).zip(rows).collect();
        let known = (0..).zip(data.iter()).filter_map(|(i, d)| Some((d.as_deref()?, exponent(i))));
        raidus_parity::recover(&mut outs, p, q, &ascending(known));
    }
    for (i, block) in lost.into_iter().zip(found) {
        data[usize::from(i)] = Some(block);
    }
    Some(())
}

fn compute(row: &Row, data: &[Vec<u8>], bytes: usize) -> Parities {
    let mut p = vec![0; bytes];
    let mut q = row.q().map(|_| vec![0; bytes]);
    let blocks = (0..).zip(data).map(|(i, d)| (d.as_slice(), row.coefficient(i)));
    raidus_parity::pq(Some(&mut p), q.as_deref_mut(), &ascending(blocks));
    Parities { p, q }
}

/// In the order of the exponents.
fn ascending<'a>(blocks: impl Iterator<Item = (&'a [u8], u8)>) -> Vec<(&'a [u8], u8)> {
    let mut blocks: Vec<_> = blocks.collect();
    blocks.sort_by_key(|(_, k)| *k);
    blocks
}
