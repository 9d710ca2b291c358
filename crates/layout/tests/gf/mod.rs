//! GF(2⁸) with polynomial 0x11d, as plain as can be: the arithmetic of P and Q for tests.

fn mul(mut a: u8, mut b: u8) -> u8 {
    let mut product = 0;
    while b != 0 {
        if b & 1 != 0 {
            product ^= a;
        }
        a = a << 1 ^ if a & 0x80 != 0 { 0x1d } else { 0 };
        b >>= 1;
    }
    product
}

fn power(k: u32) -> u8 {
    (0..k % 255).fold(1, |x, _| mul(x, 2))
}

fn inverse(x: u8) -> u8 {
    (1..=255).find(|y| mul(x, *y) == 1).expect("zero has no inverse")
}

fn add(sum: &mut [u8], block: &[u8], factor: u8) {
    let table: Vec<u8> = (0..=255).map(|x| mul(x, factor)).collect();
    for (s, b) in sum.iter_mut().zip(block) {
        *s ^= table[usize::from(*b)];
    }
}

fn add_plain(sum: &mut [u8], block: &[u8]) {
    for (s, b) in sum.iter_mut().zip(block) {
        *s ^= b;
    }
}

/// P of a row.
pub fn p(data: &[Vec<u8>]) -> Vec<u8> {
    let mut sum = data[0].clone();
    for block in &data[1..] {
        add_plain(&mut sum, block);
    }
    sum
}

/// Q of a row whose blocks have these coefficients (exponents).
pub fn q(data: &[Vec<u8>], coefficients: &[u8]) -> Vec<u8> {
    let mut sum = vec![0; data[0].len()];
    for (block, k) in data.iter().zip(coefficients) {
        add(&mut sum, block, power(u32::from(*k)));
    }
    sum
}

/// Fills in the missing blocks of a row if P and Q are enough for it.
pub fn recover(data: &mut [Option<Vec<u8>>], p: Option<&[u8]>, q: Option<&[u8]>, coefficient: impl Fn(u16) -> u8) {
    let missing: Vec<usize> = (0..data.len()).filter(|i| data[*i].is_none()).collect();
    let factor = |i: usize| power(u32::from(coefficient(i as u16)));
    // What is missing from P and from Q.
    let rest_of_p = |p: &[u8]| {
        let mut rest = p.to_vec();
        data.iter().flatten().for_each(|block| add_plain(&mut rest, block));
        rest
    };
    let rest_of_q = |q: &[u8]| {
        let mut rest = q.to_vec();
        data.iter()
            .enumerate()
            .filter_map(|(i, b)| Some((i, b.as_ref()?)))
            .for_each(|(i, b)| add(&mut rest, b, factor(i)));
        rest
    };
    match (missing[..].as_ref(), p, q) {
        ([x], Some(p), _) => data[*x] = Some(rest_of_p(p)),
        ([x], None, Some(q)) => {
            let mut block = vec![0; q.len()];
            add(&mut block, &rest_of_q(q), inverse(factor(*x)));
            data[*x] = Some(block);
        }
        ([x, y], Some(p), Some(q)) => {
            // Dx + Dy = P', gˣ·Dx + gʸ·Dy = Q'  gives  Dx = (gʸ·P' + Q') / (gˣ + gʸ).
            let (rest_p, rest_q) = (rest_of_p(p), rest_of_q(q));
            let divisor = inverse(factor(*x) ^ factor(*y));
            let mut first = vec![0; p.len()];
            add(&mut first, &rest_p, mul(factor(*y), divisor));
            add(&mut first, &rest_q, divisor);
            let mut second = rest_p;
            add_plain(&mut second, &first);
            (data[*x], data[*y]) = (Some(first), Some(second));
        }
        _ => {}
    }
}
