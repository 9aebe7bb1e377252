//! Bars: one colour for this library, one for the others, and a line for the floor.

use std::fmt::Write;

use super::table::number;

const LABELS: f64 = 190.0;
const WIDTH: f64 = 720.0;
/// Of the longest bar, so that its figure has room behind it.
const LONGEST: f64 = 440.0;
const HEIGHT: f64 = 22.0;
const TOP: f64 = 66.0;
const BELOW: f64 = 48.0;
/// About the width of a figure.
const FIGURE: f64 = 40.0;
const OURS: &str = "#1f6feb";
const PEER: &str = "#9aa4af";
const FLOOR: &str = "#d1242f";
/// The colours above suit a dark page, too; these depend on it.
const STYLE: &str = "<style>.back{fill:#fff}.ink{fill:#222}.dim{fill:#555}.grid{stroke:#ddd}.rim{stroke:#fff}\n\
    @media (prefers-color-scheme:dark){.back{fill:#0d1117}.ink{fill:#e6edf3}.dim{fill:#9198a1}.grid{stroke:#3d444d}\
    .rim{stroke:#0d1117}}</style>";

pub(super) struct Plot {
    pub(super) title: &'static str,
    /// What the figures are, and their unit.
    pub(super) axis: &'static str,
    /// The least with which it could be done.
    pub(super) floor: Option<f64>,
    pub(super) bars: Vec<Bar>,
}

pub(super) struct Bar {
    pub(super) label: String,
    pub(super) value: f64,
    pub(super) is_peer: bool,
}

impl Plot {
    /// An SVG.
    pub(super) fn svg(&self) -> String {
        let most = self.bars.iter().map(|bar| bar.value).chain(self.floor).fold(0.0, f64::max);
        let step = step(most);
        let last = (most / step).ceil().max(1.0) * step;
        let at = |value: f64| LABELS + value / last * LONGEST;
        let bottom = TOP + HEIGHT * self.bars.len() as f64;
        let mut svg = Svg(String::new());
        svg.0 += &format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{}\" \
             viewBox=\"0 0 {WIDTH} {0}\" font-family=\"sans-serif\" font-size=\"12\" role=\"img\" \
             aria-labelledby=\"title\">\n<title id=\"title\">{}</title>\n{STYLE}\n\
             <rect class=\"back\" width=\"100%\" height=\"100%\"/>\n",
            bottom + BELOW,
            self.description(),
        );
        svg.text(
            (12.0, 24.0),
            "start",
            "class=\"ink\" font-size=\"15\" font-weight=\"bold\"",
            self.title,
        );
        self.legend(&mut svg);
        let mut tick = 0.0;
        while tick < last + step / 2.0 {
            svg.line(at(tick), (TOP, bottom), "class=\"grid\" stroke-width=\"1\"");
            svg.text((at(tick), bottom + 16.0), "middle", "class=\"dim\"", &number(tick));
            tick += step;
        }
        let middle = (LABELS + LONGEST / 2.0, bottom + 36.0);
        svg.text(middle, "middle", "class=\"dim\"", self.axis);
        let rows = (0_u32..).map(|row| TOP + HEIGHT * f64::from(row));
        for (bar, y) in self.bars.iter().zip(rows.clone()) {
            let colour = if bar.is_peer { PEER } else { OURS };
            svg.bar(LABELS, y + 4.0, at(bar.value) - LABELS, colour);
            svg.text((LABELS - 8.0, y + 15.0), "end", "class=\"ink\"", &bar.label);
        }
        if let Some(floor) = self.floor {
            svg.line(at(floor), (TOP, bottom), &format!("stroke=\"{FLOOR}\" stroke-width=\"2\""));
        }
        // Above the line, with a rim that keeps it legible.
        let style = "class=\"ink rim\" stroke-width=\"4\" paint-order=\"stroke\"";
        for (bar, y) in self.bars.iter().zip(rows) {
            // A figure that the line would cross stands behind it.
            let end = at(bar.value);
            let crossed = self.floor.map(at).filter(|line| (end..end + FIGURE).contains(line));
            svg.text((crossed.unwrap_or(end) + 6.0, y + 15.0), "start", style, &number(bar.value));
        }
        svg.0 + "</svg>\n"
    }

    /// In one sentence, for those who do not see it.
    pub(super) fn description(&self) -> String {
        format!("A bar for each store and library. {}: {}", self.title, self.axis)
    }

    fn legend(&self, svg: &mut Svg) {
        let (mut x, y) = (12.0, 48.0);
        let mut entries = vec![(OURS, "distlock"), (PEER, "the fastest other library")];
        if self.floor.is_some() {
            entries.push((FLOOR, "the floor: the same by the bare driver"));
        }
        for (colour, what) in entries {
            let _ = writeln!(
                svg.0,
                "<rect x=\"{x}\" y=\"{}\" width=\"11\" height=\"11\" fill=\"{colour}\"/>",
                y - 10.0
            );
            svg.text((x + 16.0, y), "start", "class=\"ink\"", what);
            x += 40.0 + 6.5 * what.len() as f64;
        }
    }
}

/// Between two ticks: four to ten of them.
fn step(most: f64) -> f64 {
    let tens = 10_f64.powf(most.max(f64::MIN_POSITIVE).log10().floor());
    let steps = [0.1, 0.2, 0.5, 1.0, 2.0].map(|step| step * tens);
    steps.into_iter().find(|step| most / step <= 8.0).unwrap_or(tens)
}

struct Svg(String);

// Writing to a string does not fail.
impl Svg {
    fn text(&mut self, (x, y): (f64, f64), anchor: &str, style: &str, text: &str) {
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        let _ = writeln!(
            self.0,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" {style}>{text}</text>"
        );
    }

    fn line(&mut self, x: f64, (from, to): (f64, f64), style: &str) {
        let _ = writeln!(
            self.0,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{from}\" y2=\"{to}\" {style}/>"
        );
    }

    fn bar(&mut self, x: f64, y: f64, width: f64, colour: &str) {
        let height = HEIGHT - 8.0;
        let _ = writeln!(
            self.0,
            "<rect class=\"bar\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height}\" fill=\"{colour}\"/>"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_figure_has_a_bar_of_its_length() {
        let bar = |label: &str, value, is_peer| Bar { label: label.to_owned(), value, is_peer };
        let bars = vec![bar("a & b", 2.0, false), bar("c", 1.0, true)];
        let plot = Plot { title: "Title", axis: "times", floor: Some(1.0), bars };
        let svg = plot.svg();
        assert!(svg.contains(">a &amp; b<") && svg.contains(">Title<") && svg.contains(">times<"));
        let widths: Vec<f64> = svg
            .lines()
            .filter(|line| line.contains("class=\"bar\""))
            .map(|line| line.split("width=\"").nth(1).unwrap().split('"').next().unwrap())
            .map(|width| width.parse().unwrap())
            .collect();
        assert_eq!(widths, [440.0, 220.0]);
        assert!(svg.contains(&format!("stroke=\"{FLOOR}\"")));
        assert!(
            svg.contains("<title id=\"title\">A bar for each store and library. Title: times<")
        );
        let unfloored = Plot { floor: None, ..plot };
        assert!(!unfloored.svg().contains(FLOOR));
    }

    #[test]
    fn ticks_are_round() {
        for (most, expected) in [(1.5, 0.2), (3.4, 0.5), (0.9, 0.2), (15_000.0, 2000.0), (8.0, 1.0)]
        {
            assert!((step(most) / expected - 1.0).abs() < 1e-9, "{most}: {}", step(most));
        }
    }
}
