//! What was measured, as a table and as a picture.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use plotters::prelude::*;

use super::cases::{Case, Target};

/// A pair and the ratios of its rounds.
pub struct Row {
    name: &'static str,
    target: Target,
    median: f64,
    least: f64,
    most: f64,
}

impl Row {
    pub fn new(case: &Case, mut ratios: Vec<f64>) -> Row {
        ratios.sort_by(f64::total_cmp);
        let at = |i: usize| ratios.get(i).copied().unwrap_or(f64::NAN);
        let (median, least, most) = (at(ratios.len() / 2), at(0), at(ratios.len().saturating_sub(1)));
        Row { name: case.name, target: case.target, median, least, most }
    }

    fn is_met(&self) -> bool {
        self.target.is_met(self.median)
    }
}

/// The middle one.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

const BEGIN: &str = "<!-- made by: cargo xtask bench --docs docs -->";
const END: &str = "<!-- end -->";

/// As markdown.
pub fn markdown(rows: &[Row]) -> String {
    let mut out = String::from("| pair | ratio (median) | least – most | to reach | |\n|---|---|---|---|---|\n");
    for row in rows {
        let Row { name, median, least, most, target } = row;
        let met = if row.is_met() { "yes" } else { "**no**" };
        let _ = writeln!(out, "| {name} | {median:.3} | {least:.3} – {most:.3} | {target} | {met} |");
    }
    out
}

/// Replaces the table in a document.
pub fn insert(path: &Path, rows: &[Row]) -> Result<()> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let (before, rest) = text.split_once(BEGIN).with_context(|| format!("{} lacks {BEGIN}", path.display()))?;
    let (_, after) = rest.split_once(END).with_context(|| format!("{} lacks {END}", path.display()))?;
    let new = format!("{before}{BEGIN}\n\n{}\n{END}{after}", markdown(rows));
    fs::write(path, new).with_context(|| format!("cannot write {}", path.display()))
}

const WIDTH: u32 = 1000;
const ROW: u32 = 30;

/// A bar from the least to the most, a mark at the median, and what is to be reached.
pub fn plot(path: &Path, rows: &[Row]) -> Result<()> {
    let most = rows.iter().map(|r| r.most).fold(2.0, f64::max).min(4.0);
    let count = rows.len() as i32;
    let area = SVGBackend::new(path, (WIDTH, ROW * rows.len() as u32 + 60)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .x_label_area_size(30)
        .right_y_label_area_size(0)
        .margin(10)
        .build_cartesian_2d(-2.2f64..most, 0..count)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .x_labels(8)
        .x_label_formatter(&|x| {
            if *x < -0.01 { String::new() } else { format!("{x:.1}") }
        })
        .draw()?;
    for (at, row) in (0..).zip(rows.iter().rev()) {
        let colour = if row.is_met() { GREEN } else { RED };
        let bar = [(row.least, at), (row.most.min(most), at + 1)];
        chart.draw_series([Rectangle::new(bar, colour.mix(0.3).filled())])?;
        let line = |x: f64, colour: RGBColor| PathElement::new([(x, at), (x, at + 1)], colour.stroke_width(2));
        let (Target::AtLeast(wanted) | Target::AtMost(wanted)) = row.target;
        chart.draw_series([line(row.median.min(most), BLACK), line(wanted, BLUE)])?;
        let font = ("sans-serif", 13).into_font();
        chart.draw_series([Text::new(row.name, (-2.2, at + 1), font)])?;
    }
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_and_the_spread() {
        let row = Row::new(&super::super::CASES[0], vec![0.5, 2.0, 1.0]);
        assert_eq!((row.least, row.median, row.most), (0.5, 1.0, 2.0));
        assert!(row.is_met());
        assert!(markdown(&[row]).contains("| 1.000 | 0.500 – 2.000 | ≥ 0.90 | yes |"));
    }

    #[test]
    fn the_table_replaces_the_old_one() {
        let path = super::super::scratch();
        fs::write(&path, format!("a\n{BEGIN}\nold\n{END}\nb\n")).unwrap();
        insert(&path, &[]).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert!(text.starts_with("a\n") && text.ends_with("\nb\n") && !text.contains("old"));
    }
}
