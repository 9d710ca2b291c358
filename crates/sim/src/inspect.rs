//! The slow checker: looks at the members' bytes, without the engine, and says whether they are an array that may be.
//!
//! - Whichever way a sector can be had (each copy; the data member; reconstruction where the data member is missing) it holds
//!   something the oracle allows.
//! - Where the metadata does not admit doubt (array clean, or bitmap bit clear) copies are equal and parity is right.

use std::collections::BTreeSet;

use raidus_layout::{Geometry, MirrorGeometry, ParityGeometry, Row};
use raidus_parity::gf;
use raidus_units::{Sector, Slot};

use crate::disk::Disk;
use crate::oracle::Oracle;
use crate::stamp::{ANYTHING, SECTOR, WriteId};

/// A member that holds a slot.
pub(crate) struct Leg<'a> {
    pub disk: &'a Disk,
    /// Device sector of component address 0.
    pub data_offset: u64,
    /// Component address from which on the content does not count.
    pub valid_to: u64,
    /// Device ranges whose content does not count, as first sector and length.
    pub bad: Vec<(u64, u64)>,
}

/// An array as its metadata describes it.
pub(crate) struct Inspection<'a> {
    pub geometry: &'a Geometry,
    /// By slot.
    pub legs: Vec<Option<Leg<'a>>>,
    /// Whether the metadata says that redundancy at this address may be wrong (component address; raid10: array address).
    pub suspect: &'a dyn Fn(u64) -> bool,
    pub oracle: &'a Oracle,
    /// Slots whose member was there until the power cut, and is not now: what was being written there is lost.
    pub lost: &'a BTreeSet<Slot>,
}

/// By array sector: what its copies hold, by the writes they came from.
pub(crate) type Contents = Vec<Vec<WriteId>>;

impl Inspection<'_> {
    /// Checks everything.
    pub(crate) fn run(&self) -> Result<Contents, String> {
        match self.geometry {
            Geometry::Mirror(g) => (0..self.oracle.len()).map(|s| self.mirror_sector(g, s)).collect(),
            Geometry::Parity(g) => self.parity(g),
            Geometry::Linear(g) => self.plain(|s| {
                let e = g.map(s, raidus_units::Sectors(1));
                (e.slot, e.component)
            }),
            Geometry::Raid0(g) => self.plain(|s| {
                let e = g.map(s, raidus_units::Sectors(1));
                (e.slot, e.component)
            }),
        }
    }

    fn plain(&self, place: impl Fn(Sector) -> (Slot, Sector)) -> Result<Contents, String> {
        let sector = |s| {
            let (slot, component) = place(Sector(s));
            let content = self.block(slot, component.0).ok_or_else(|| format!("array sector {s} has no member"))?;
            Ok(vec![self.oracle.check_survivor(s, &content)?])
        };
        (0..self.oracle.len()).map(sector).collect()
    }

    fn mirror_sector(&self, g: &MirrorGeometry, s: u64) -> Result<Vec<WriteId>, String> {
        let mut first: Option<(Slot, Vec<u8>)> = None;
        let mut found = Vec::new();
        for (slot, component) in (0..g.copies()).map(|n| g.copy(Sector(s), n)) {
            let Some(content) = self.block(slot, component.0) else { continue };
            let id = self.oracle.check_survivor(s, &content).map_err(|e| format!("slot {slot}: {e}"))?;
            found.push(id);
            match &first {
                Some((other, expected)) if *expected != content && !(self.suspect)(s) => {
                    return Err(format!(
                        "array sector {s} differs between slots {other} and {slot}, and the metadata does not say it may"
                    ));
                }
                Some(_) => {}
                None => first = Some((slot, content)),
            }
        }
        if found.is_empty() { Err(format!("array sector {s} has no copy left")) } else { Ok(found) }
    }

    fn parity(&self, g: &ParityGeometry) -> Result<Contents, String> {
        let mut contents = vec![Vec::new(); self.oracle.len() as usize];
        for number in 0..g.rows() {
            let row = g.row(number);
            for offset in 0..g.chunk().0 {
                let component = number * g.chunk().0 + offset;
                let blocks: Vec<_> = (0..g.raid_disks()).map(|s| self.block(Slot(s), component)).collect();
                let data = self
                    .parity_sector(g, &row, &blocks, component)
                    .map_err(|e| format!("row {number}, sector {offset} of its chunks: {e}"))?;
                for (i, content) in (0..).zip(&data) {
                    let s = g.array(number, i, raidus_units::Sectors(offset)).0;
                    let lost = self.lost.contains(&row.data(i)) && self.oracle.is_undecided(s);
                    let found = self.oracle.check_survivor(s, content);
                    contents[s as usize].push(if lost { found.unwrap_or(ANYTHING) } else { found? });
                }
            }
        }
        Ok(contents)
    }

    /// Checks one sector of each member in a row; returns the data, by data index.
    fn parity_sector(
        &self,
        g: &ParityGeometry,
        row: &Row,
        blocks: &[Option<Vec<u8>>],
        component: u64,
    ) -> Result<Vec<Vec<u8>>, String> {
        let suspect = (self.suspect)(component);
        let exponents: Vec<u8> = (0..g.data_disks()).map(|i| exponent(g, row, row.data(i))).collect();
        let mut data: Vec<Option<Vec<u8>>> = (0..g.data_disks()).map(|i| blocks[row.data(i).index()].clone()).collect();
        let p = blocks[row.p().index()].as_deref();
        let q = row.q().and_then(|q| blocks[q.index()].as_deref());
        let lost: Vec<usize> = (0..data.len()).filter(|i| data[*i].is_none()).collect();
        if !lost.is_empty() {
            if suspect {
                return Err("data is missing where parity cannot be trusted".to_owned());
            }
            reconstruct(&mut data, &exponents, p, q)?;
        }
        let data: Vec<Vec<u8>> = data.into_iter().map(|d| d.expect("reconstructed")).collect();
        if !suspect {
            check_parity(&data, &exponents, p, q)?;
        }
        Ok(data)
    }

    /// One sector of a member, if it is there and counts.
    fn block(&self, slot: Slot, component: u64) -> Option<Vec<u8>> {
        let leg = self.legs.get(slot.index())?.as_ref()?;
        let at = leg.data_offset + component;
        let bad = leg.bad.iter().any(|(first, len)| (*first..first + len).contains(&at));
        (component < leg.valid_to && !bad && !leg.disk.is_unreadable(at)).then(|| leg.disk.peek(at, 1))
    }
}

/// The exponent of a data slot in Q, from md's rules; on purpose not asked of the layout crate, which the engine uses.
pub(crate) fn exponent(g: &ParityGeometry, row: &Row, slot: Slot) -> u8 {
    let (n, p) = (g.raid_disks(), row.p().0);
    let Some(q) = row.q().map(|q| q.0) else { return 0 };
    if (8..=10).contains(&g.layout()) {
        return slot.0 as u8;
    }
    let walk = (1..n).map(|step| (q + step) % n).filter(|s| *s != p);
    walk.take_while(|s| *s != slot.0).count() as u8
}

/// P and Q of a row's data.
pub(crate) fn parities(data: &[Vec<u8>], exponents: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let mut order: Vec<usize> = (0..data.len()).collect();
    order.sort_by_key(|i| exponents[*i]);
    let (mut p, mut q) = (vec![0; data[0].len()], vec![0; data[0].len()]);
    let blocks: Vec<(&[u8], u8)> = order.iter().map(|i| (&data[*i][..], exponents[*i])).collect();
    let distinct = exponents.iter().any(|e| *e != 0);
    // Without Q there are no exponents to tell the blocks apart by.
    let numbered: Vec<(&[u8], u8)> =
        if distinct { blocks } else { data.iter().zip(0..).map(|(d, k)| (&d[..], k)).collect() };
    raidus_parity::pq(Some(&mut p), Some(&mut q), &numbered);
    (p, q)
}

fn check_parity(data: &[Vec<u8>], exponents: &[u8], p: Option<&[u8]>, q: Option<&[u8]>) -> Result<(), String> {
    let (right_p, right_q) = parities(data, exponents);
    if p.is_some_and(|p| p != &right_p[..]) {
        return Err("P is wrong, and the metadata does not say it may be".to_owned());
    }
    if q.is_some_and(|q| q != &right_q[..]) {
        return Err("Q is wrong, and the metadata does not say it may be".to_owned());
    }
    Ok(())
}

/// Fills in what is lost by the textbook formulas, byte by byte.
fn reconstruct(
    data: &mut [Option<Vec<u8>>],
    exponents: &[u8],
    p: Option<&[u8]>,
    q: Option<&[u8]>,
) -> Result<(), String> {
    let lost: Vec<usize> = (0..data.len()).filter(|i| data[*i].is_none()).collect();
    let here: Vec<Vec<u8>> = data.iter().map(|d| d.clone().unwrap_or_else(|| vec![0; SECTOR])).collect();
    let (p_here, q_here) = parities(&here, exponents);
    let sum = |a: &[u8], b: &[u8]| -> Vec<u8> { a.iter().zip(b).map(|(a, b)| a ^ b).collect() };
    let times = |c: u8, a: &[u8]| -> Vec<u8> { a.iter().map(|a| gf::mul(c, *a)).collect() };
    match (&lost[..], p, q) {
        ([x], Some(p), _) => data[*x] = Some(sum(p, &p_here)),
        ([x], None, Some(q)) => {
            let back = gf::inv(gf::exp(exponents[*x])).expect("a power of g");
            data[*x] = Some(times(back, &sum(q, &q_here)));
        }
        ([x, y], Some(p), Some(q)) => {
            // D_x + D_y = p and gˣ·D_x + gʸ·D_y = q.
            let (gx, gy) = (gf::exp(exponents[*x]), gf::exp(exponents[*y]));
            let scale = gf::inv(gx ^ gy).expect("exponents differ");
            let (p, q) = (sum(p, &p_here), sum(q, &q_here));
            let dx = times(scale, &sum(&times(gy, &p), &q));
            data[*y] = Some(sum(&p, &dx));
            data[*x] = Some(dx);
        }
        _ => return Err(format!("{} data blocks are lost, which is too many", lost.len())),
    }
    Ok(())
}
