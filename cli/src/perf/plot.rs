//! Bus bandwidth over size, as a picture.

use std::fmt::Write as _;

use super::Test;
use super::sweep::{Cell, Row};

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 480.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 30.0;
const TOP: f64 = 80.0;
const BOTTOM: f64 = 60.0;

/// Colours that people with any colour vision can tell apart (Okabe and Ito).
const COLOURS: [&str; 7] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];

/// The rows as an SVG file: the size on a logarithmic axis, in place dashed.
pub(super) fn svg(test: Test, world: usize, rows: &[Row]) -> String {
    let series = series(rows);
    let points = || series.iter().flat_map(|series| &series.points);
    let least = points().map(|point| point.0).fold(f64::INFINITY, f64::min);
    let most = points().map(|point| point.0).fold(0.0, f64::max);
    let highest = points().map(|point| point.1).fold(0.0, f64::max);
    let axes = Axes::new(least, most, highest);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"26\" font-size=\"17\">{} with {world} ranks</text>\n",
        test.program()
    );
    axes.draw(&mut svg);
    legend(&mut svg, &series);
    for series in &series {
        series.draw(&mut svg, &axes);
    }
    svg.push_str("</svg>\n");
    svg
}

/// One line of the picture.
struct Series {
    name: String,
    colour: &'static str,
    dashed: bool,
    /// Size in bytes, and GB/s.
    points: Vec<(f64, f64)>,
}

fn series(rows: &[Row]) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    let mut kinds: Vec<String> = Vec::new();
    for row in rows.iter().filter(|row| row.size > 0) {
        let mut kind = row.number.name().to_owned();
        if row.operator != super::number::Operator::None {
            let _ = write!(kind, " {}", row.operator.name());
        }
        if let Some(root) = row.root {
            let _ = write!(kind, " root {root}");
        }
        let number = kinds.iter().position(|known| *known == kind).unwrap_or_else(|| {
            kinds.push(kind.clone());
            kinds.len() - 1
        });
        let mut add = |cell: Option<&Cell>, form: &str, dashed| {
            let Some(cell) = cell else { return };
            let name = format!("{kind}, {form}");
            let point = (row.size as f64, cell.bus_bandwidth);
            match all.iter_mut().find(|series| series.name == name) {
                Some(series) => series.points.push(point),
                None => all.push(Series {
                    name,
                    colour: COLOURS[number % COLOURS.len()],
                    dashed,
                    points: vec![point],
                }),
            }
        };
        add(Some(&row.out_of_place), "out of place", false);
        add(row.in_place.as_ref(), "in place", true);
    }
    for series in &mut all {
        series.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    all
}

/// Where numbers are on the picture.
struct Axes {
    /// Powers of two.
    left: f64,
    right: f64,
    /// GB/s at the top, and between two lines.
    top: f64,
    step: f64,
}

impl Axes {
    fn new(least: f64, most: f64, highest: f64) -> Self {
        let (left, right) = match (least.is_finite(), least < most) {
            (true, true) => (least.log2().floor(), most.log2().ceil()),
            (true, false) => (least.log2().floor() - 1.0, least.log2().ceil() + 1.0),
            (false, _) => (0.0, 1.0),
        };
        let step = round_step(highest.max(1e-3) / 5.0);
        Self { left, right, top: step * (highest.max(1e-3) / step).ceil(), step }
    }

    fn x(&self, size: f64) -> f64 {
        let share = (size.log2() - self.left) / (self.right - self.left);
        LEFT + share * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, rate: f64) -> f64 {
        HEIGHT - BOTTOM - rate / self.top * (HEIGHT - TOP - BOTTOM)
    }

    fn draw(&self, svg: &mut String) {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for line in 0..=(self.top / self.step).round() as usize {
            let rate = line as f64 * self.step;
            let (y, label) = (self.y(rate), trimmed(rate));
            let _ = writeln!(
                svg,
                "<path d=\"M{LEFT} {y:.1}H{right}\" stroke=\"#ddd\"/>\
                 <text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
                LEFT - 8.0,
                y + 4.0
            );
        }
        let powers = (self.right - self.left) as usize;
        for power in (0..=powers).step_by(powers / 10 + 1) {
            let power = self.left + power as f64;
            let x = self.x(power.exp2());
            let _ = writeln!(
                svg,
                "<path d=\"M{x:.1} {TOP}V{bottom}\" stroke=\"#eee\"/>\
                 <text x=\"{x:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{}</text>",
                bottom + 18.0,
                size_label(power)
            );
        }
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {TOP}V{bottom}H{right}\" fill=\"none\" stroke=\"#444\"/>\n\
             <text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"middle\">size</text>\n\
             <text transform=\"translate(20 {:.0}) rotate(-90)\" text-anchor=\"middle\">bus bandwidth (GB/s)</text>",
            (LEFT + right) / 2.0,
            bottom + 42.0,
            (TOP + bottom) / 2.0,
        );
    }
}

impl Series {
    fn draw(&self, svg: &mut String, axes: &Axes) {
        let mut path = String::new();
        let mut marks = String::new();
        for (number, &(size, rate)) in self.points.iter().enumerate() {
            let (x, y) = (axes.x(size), axes.y(rate));
            let _ = write!(path, "{}{x:.1} {y:.1}", if number == 0 { 'M' } else { 'L' });
            let _ = write!(marks, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\"/>");
        }
        let (colour, dash) = (self.colour, self.dash());
        let _ = writeln!(
            svg,
            "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>\
             <g fill=\"{colour}\">{marks}</g>"
        );
    }

    fn dash(&self) -> &'static str {
        if self.dashed { " stroke-dasharray=\"6 4\"" } else { "" }
    }
}

/// As many names as fit above the picture.
fn legend(svg: &mut String, series: &[Series]) {
    let (mut x, mut y) = (LEFT, 46.0);
    for series in series {
        let width = 45.0 + 7.0 * series.name.len() as f64;
        if x + width > WIDTH - RIGHT {
            (x, y) = (LEFT, y + 18.0);
        }
        if y > TOP - 10.0 {
            return;
        }
        let _ = writeln!(
            svg,
            "<path d=\"M{x:.0} {:.0}h28\" stroke=\"{}\" stroke-width=\"2\"{}/>\
             <text x=\"{:.0}\" y=\"{y:.0}\">{}</text>",
            y - 4.0,
            series.colour,
            series.dash(),
            x + 34.0,
            series.name
        );
        x += width;
    }
}

/// The smallest of 1, 2 and 5 times a power of ten that is not below `least`.
fn round_step(least: f64) -> f64 {
    let power = 10.0_f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|step| *step >= least * (1.0 - 1e-9))
        .unwrap_or(10.0 * power)
}

fn trimmed(number: f64) -> String {
    let text = format!("{number:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Of 2 to that power: `64 KiB`.
fn size_label(power: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = (power as usize / 10).min(units.len() - 1);
    format!("{} {}", (power - 10.0 * unit as f64).exp2(), units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_hold_every_point() {
        for (least, most, highest) in [(8.0, 67e6, 12.3), (8.0, 8.0, 0.001), (1.0, 3.0, 0.0)] {
            let axes = Axes::new(least, most, highest);
            for size in [least, most] {
                assert!((LEFT..=WIDTH - RIGHT).contains(&axes.x(size)));
            }
            assert!((TOP..=HEIGHT - BOTTOM).contains(&axes.y(highest)));
        }
        let picture = svg(Test::AllReduce, 2, &[]);
        assert!(!picture.contains("NaN") && !picture.contains("inf"));
    }

    #[test]
    fn labels_are_short() {
        assert_eq!([3.0, 16.0, 20.0, 33.0].map(size_label), ["8 B", "64 KiB", "1 MiB", "8 GiB"]);
        assert_eq!([0.0, 0.25, 2.0].map(trimmed), ["0", "0.25", "2"]);
        assert_eq!([0.3, 1.0, 4.1].map(round_step), [0.5, 1.0, 5.0]);
    }
}
