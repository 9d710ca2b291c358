//! Which combination of the survivors a lost block is, and which block of a row is wrong.
//!
//! Let p = P + Σ D_k and q = Q + Σ gᵏ·D_k over the blocks at hand, where a lost P or Q counts as zero: the *syndromes*. Every
//! lost block is a·p + b·q for two constants, its [`Row`]. That holds for lost parity too: P lost is p itself (1, 0). So
//! one shape of answer covers every loss that two parities can bear.

use crate::gf;

/// One lost block as multiples of the two syndromes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The multiple of p; also the coefficient of P, unless P is lost.
    pub p: u8,
    /// The multiple of q; also the coefficient of Q, unless Q is lost.
    pub q: u8,
}

impl Row {
    /// The coefficient of the surviving data block with exponent `k` (below 255).
    pub const fn data(self, k: u8) -> u8 {
        self.p ^ gf::mul(self.q, gf::exp(k))
    }

    /// The coefficients for [`combine`](crate::combine) over: the surviving data blocks in the order given, then P if
    /// `with_p`, then Q if `with_q`. Leave out a lost parity, and one whose coefficient is zero if it was not read.
    pub fn coefficients(self, data: &[u8], with_p: bool, with_q: bool) -> Vec<u8> {
        let mut row: Vec<u8> = data.iter().map(|&k| self.data(k)).collect();
        row.extend(with_p.then_some(self.p));
        row.extend(with_q.then_some(self.q));
        row
    }
}

/// P as it should be, or a data block from P and the other data: the plain sum.
pub const fn recover_one_with_p() -> Row {
    Row { p: 1, q: 0 }
}

/// Q as it should be, from all data.
pub const fn recompute_q() -> Row {
    Row { p: 0, q: 1 }
}

/// The data block with exponent `x` from Q and the other data, P being lost or doubted.
pub const fn recover_one_with_q(x: u8) -> Row {
    Row { p: 0, q: gf::exp(gf::ORDER - x % gf::ORDER) }
}

/// The data blocks with exponents `x` and `y` from P, Q and the other data, in that order; none if x = y.
pub const fn recover_two(x: u8, y: u8) -> Option<(Row, Row)> {
    // p = D_x + D_y and q = gˣ·D_x + gʸ·D_y, solved for each.
    let (gx, gy) = (gf::exp(x % gf::ORDER), gf::exp(y % gf::ORDER));
    match gf::inv(gx ^ gy) {
        None => None,
        Some(scale) => Some((Row { p: gf::mul(gy, scale), q: scale }, Row { p: gf::mul(gx, scale), q: scale })),
    }
}

/// What of a row is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// P alone.
    P,
    /// Q alone.
    Q,
    /// Both parities.
    PQ,
    /// The data block with this exponent. Found by P; Q need not be read.
    Data(u8),
    /// The data block with this exponent, and P.
    DataP(u8),
    /// The data block with this exponent, and Q.
    DataQ(u8),
    /// The data blocks with these exponents.
    DataData(u8, u8),
}

/// The rows of everything lost, in the order in which [`Lost`] names it; none if two data exponents are equal.
pub const fn recover(lost: Lost) -> Option<(Row, Option<Row>)> {
    Some(match lost {
        Lost::P | Lost::Data(_) => (recover_one_with_p(), None),
        Lost::Q => (recompute_q(), None),
        Lost::PQ => (recover_one_with_p(), Some(recompute_q())),
        Lost::DataP(x) => {
            // D_x = g⁻ˣ·q; P = p + D_x, where p has the other data only.
            let data = recover_one_with_q(x);
            (data, Some(Row { p: 1, q: data.q }))
        }
        // D_x = p; Q = q + gˣ·D_x.
        Lost::DataQ(x) => (recover_one_with_p(), Some(Row { p: gf::exp(x % gf::ORDER), q: 1 })),
        Lost::DataData(x, y) => match recover_two(x, y) {
            Some((first, second)) => (first, Some(second)),
            None => return None,
        },
    })
}

/// What the syndromes of a whole row say, if at most one of its blocks is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Located {
    /// Both are zero: the row is consistent.
    Consistent,
    /// The data block with this exponent is wrong, by p.
    Data(u8),
    /// P is wrong, by p.
    P,
    /// Q is wrong, by q.
    Q,
    /// No single block explains every byte: two or more are wrong.
    Several,
}

/// Finds the one wrong block from the syndromes p and q of a row, equally long, whose data blocks have the exponents
/// `exponents`. Every byte must tell the same tale.
///
/// Two wrong blocks can, rarely, look like one other; the fewer bytes differ, the likelier. What is repaired on this
/// evidence should be checked by whoever can.
pub fn locate_error(p: &[u8], q: &[u8], exponents: &[u8]) -> Located {
    assert_eq!(p.len(), q.len(), "syndromes of one row are equally long");
    let mut found = Located::Consistent;
    for (&p, &q) in p.iter().zip(q) {
        let here = match (gf::log(p), gf::log(q)) {
            (None, None) => continue,
            (Some(_), None) => Located::P,
            (None, Some(_)) => Located::Q,
            // q = gᵏ·p.
            (Some(p), Some(q)) => Located::Data(if q >= p { q - p } else { q + (gf::ORDER - p) }),
        };
        match found {
            Located::Consistent => found = here,
            _ if found != here => return Located::Several,
            _ => {}
        }
    }
    match found {
        Located::Data(k) if !exponents.contains(&k) => Located::Several,
        found => found,
    }
}
