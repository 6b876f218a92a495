//! Plots as inline SVG, readable on a light and on a dark page.
//!
//! Axes and text are drawn in one marker colour that is then replaced by `currentColor`, so that the page sets it;
//! series have colours of medium lightness that are visible on both backgrounds.

use crate::decimal::plain;
use plotters::prelude::*;

/// Marker colour of axes and text until the SVG is written.
const INK: RGBColor = RGBColor(1, 2, 3);
const INK_TEXT: &str = "#010203";
/// Size of a plot beside another one, and of one across the page.
const SIZE: (u32, u32) = (600, 310);
const WIDE: (u32, u32) = (1160, 340);

/// Colours of series, chosen to be distinguishable with colour blindness.
pub const PALETTE: [&str; 6] = [
    "#3b82c4", "#e08a2e", "#2f9e77", "#c2557f", "#8a6fd1", "#7a8896",
];
/// Colours of ordered classes, from good to bad.
pub const CLASSES: [&str; 9] = [
    "#1f8a70", "#4ba36b", "#7fb563", "#b4bd5c", "#e0b850", "#e69a47", "#de7742", "#cf5242",
    "#a93348",
];

/// A named series.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Name, for the legend.
    pub name: String,
    /// Points.
    pub points: Vec<(f64, f64)>,
    /// Colour, `#rrggbb`.
    pub colour: &'static str,
    /// Only points, no line.
    pub scatter: bool,
    /// 95 % confidence intervals of the points: x, lower and upper end.
    pub spread: Vec<(f64, f64, f64)>,
}

/// Bars of one class, stacked on the bars of the classes before it.
#[derive(Clone, Debug, PartialEq)]
pub struct Stack {
    /// Name, for the legend.
    pub name: String,
    /// One value per category.
    pub values: Vec<f64>,
    /// Colour.
    pub colour: &'static str,
}

/// Bars of one colour, beside those of the other groups.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Name, for the legend.
    pub name: String,
    /// One value per category; `None`: no bar.
    pub values: Vec<Option<f64>>,
    /// 95 % confidence intervals of the values; may be shorter.
    pub spread: Vec<Option<(f64, f64)>>,
    /// Colour.
    pub colour: &'static str,
}

#[derive(Clone, Debug, PartialEq)]
enum ChartBody {
    Lines(Vec<Series>),
    Stacks {
        categories: Vec<String>,
        stacks: Vec<Stack>,
    },
    Groups {
        categories: Vec<String>,
        groups: Vec<Group>,
    },
}

/// A plot.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    title: String,
    x: String,
    y: String,
    body: ChartBody,
    limit: Option<(f64, String)>,
    wide: bool,
}

impl Chart {
    /// Lines or points over a number.
    pub fn lines(title: &str, x: &str, y: &str, series: Vec<Series>) -> Chart {
        Chart {
            title: title.to_owned(),
            x: x.to_owned(),
            y: y.to_owned(),
            body: ChartBody::Lines(series),
            limit: None,
            wide: false,
        }
    }

    /// Stacked bars over categories.
    pub fn stacks(
        title: &str,
        x: &str,
        y: &str,
        categories: Vec<String>,
        stacks: Vec<Stack>,
    ) -> Chart {
        Chart {
            title: title.to_owned(),
            x: x.to_owned(),
            y: y.to_owned(),
            body: ChartBody::Stacks { categories, stacks },
            limit: None,
            wide: false,
        }
    }

    /// Bars of several groups side by side over categories, with their intervals.
    pub fn groups(
        title: &str,
        x: &str,
        y: &str,
        categories: Vec<String>,
        groups: Vec<Group>,
    ) -> Chart {
        Chart {
            title: title.to_owned(),
            x: x.to_owned(),
            y: y.to_owned(),
            body: ChartBody::Groups { categories, groups },
            limit: None,
            wide: false,
        }
    }

    /// Draws a threshold if it is within twice the largest value.
    pub fn with_limit(mut self, limit: Option<f64>, name: &str) -> Chart {
        self.limit = limit.map(|limit| (limit, name.to_owned()));
        self
    }

    /// Draws the plot across the page.
    pub fn with_full_width(mut self) -> Chart {
        self.wide = true;
        self
    }

    /// Whether the plot is drawn across the page.
    pub fn is_wide(&self) -> bool {
        self.wide
    }

    fn size(&self) -> (u32, u32) {
        if self.wide { WIDE } else { SIZE }
    }

    /// Whether there is anything to draw.
    pub fn is_empty(&self) -> bool {
        match &self.body {
            ChartBody::Lines(series) => series.iter().all(|series| series.points.is_empty()),
            ChartBody::Stacks { stacks, .. } => stacks
                .iter()
                .all(|stack| stack.values.iter().all(|v| *v == 0.0)),
            ChartBody::Groups { groups, .. } => groups
                .iter()
                .all(|group| group.values.iter().all(Option::is_none)),
        }
    }

    /// The title.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// Names and colours for the legend beside the plot; empty with a single series, which the title names.
    pub fn legend(&self) -> Vec<(&str, &'static str)> {
        match &self.body {
            ChartBody::Lines(series) if series.len() == 1 => Vec::new(),
            ChartBody::Lines(series) => {
                series.iter().map(|s| (s.name.as_str(), s.colour)).collect()
            }
            ChartBody::Stacks { stacks, .. } if stacks.len() == 1 => Vec::new(),
            ChartBody::Stacks { stacks, .. } => stacks
                .iter()
                .filter(|stack| stack.values.iter().any(|value| *value > 0.0))
                .map(|s| (s.name.as_str(), s.colour))
                .collect(),
            ChartBody::Groups { groups, .. } => groups
                .iter()
                .map(|group| (group.name.as_str(), group.colour))
                .collect(),
        }
    }

    /// The plot as an `<svg>` element; a note if it cannot be drawn.
    pub fn svg(&self) -> String {
        let mut svg = String::new();
        match self.draw(&mut svg) {
            Ok(()) => finish(&svg, &self.title, self.size()),
            Err(error) => format!(
                "<p class=\"note\">{}: not drawn: {}</p>",
                escape(&self.title),
                escape(&error)
            ),
        }
    }

    fn draw(&self, svg: &mut String) -> Result<(), String> {
        let area = SVGBackend::with_string(svg, self.size()).into_drawing_area();
        match &self.body {
            ChartBody::Lines(series) => self.draw_lines(&area, series),
            ChartBody::Stacks { categories, stacks } => self.draw_stacks(&area, categories, stacks),
            ChartBody::Groups { categories, groups } => self.draw_groups(&area, categories, groups),
        }
        .and_then(|()| area.present().map_err(|error| error.to_string()))
    }

    fn top(&self, largest: f64) -> f64 {
        let limit = self
            .limit
            .as_ref()
            .map(|limit| limit.0)
            .filter(|limit| *limit <= largest * 2.0);
        let top = limit.unwrap_or(0.0).max(largest) * 1.08;
        if top > 0.0 { top } else { 1.0 }
    }

    fn draw_lines(&self, area: &Area<'_>, series: &[Series]) -> Result<(), String> {
        let points = || series.iter().flat_map(|series| series.points.iter());
        let (low, high) = points().fold((f64::MAX, f64::MIN), |(low, high), (x, _)| {
            (low.min(*x), high.max(*x))
        });
        let (low, high) = if low < high {
            (low, high)
        } else {
            (low - 1.0, low + 1.0)
        };
        let ends = series
            .iter()
            .flat_map(|series| series.spread.iter().map(|spread| spread.2));
        let largest = points()
            .map(|point| point.1)
            .chain(ends)
            .fold(0.0, f64::max);
        let margin = (high - low) * 0.02;
        let y = 0.0..self.top(largest);
        let mut chart = builder(area)
            .build_cartesian_2d(low - margin..high + margin, y)
            .map_err(|error| error.to_string())?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(INK.mix(0.12))
            .axis_style(INK.mix(0.5))
            .label_style(("sans-serif", 13.5).into_font().color(&INK.mix(0.8)))
            .x_label_formatter(&|x| plain(*x))
            .y_label_formatter(&|y| plain(*y))
            .x_labels(if self.wide { 12 } else { 7 })
            .y_labels(6)
            .x_desc(self.x.as_str())
            .y_desc(self.y.as_str())
            .draw()
            .map_err(|error| error.to_string())?;
        for one in series {
            let colour = rgb(one.colour);
            let radius = if one.points.len() > 400 { 1 } else { 3 };
            if !one.scatter {
                let line = LineSeries::new(one.points.iter().copied(), colour.stroke_width(2));
                chart.draw_series(line).map_err(|error| error.to_string())?;
            }
            for (x, from, to) in &one.spread {
                let cap = (high - low) * 0.006;
                let whisker = [
                    vec![(*x, *from), (*x, *to)],
                    vec![(x - cap, *from), (x + cap, *from)],
                    vec![(x - cap, *to), (x + cap, *to)],
                ];
                let whisker = whisker.map(|path| PathElement::new(path, colour.stroke_width(1)));
                chart
                    .draw_series(whisker)
                    .map_err(|error| error.to_string())?;
            }
            if one.scatter || one.points.len() <= 60 {
                let style = colour.mix(if one.scatter { 0.55 } else { 1.0 }).filled();
                let dots = one
                    .points
                    .iter()
                    .map(|point| Circle::new(*point, radius, style));
                chart.draw_series(dots).map_err(|error| error.to_string())?;
            }
        }
        if let Some((limit, name)) = self.limit.as_ref().filter(|limit| limit.0 <= largest * 2.0) {
            let line = [(low - margin, *limit), (high + margin, *limit)];
            let style = rgb("#cf5242").mix(0.9).stroke_width(1);
            chart
                .draw_series(DashedLineSeries::new(line, 6, 4, style))
                .map_err(|error| error.to_string())?;
            let font = ("sans-serif", 12).into_font().color(&rgb("#cf5242"));
            let at = (low - margin * 0.5, *limit);
            chart
                .draw_series(std::iter::once(Text::new(name.clone(), at, font)))
                .map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    fn draw_stacks(
        &self,
        area: &Area<'_>,
        categories: &[String],
        stacks: &[Stack],
    ) -> Result<(), String> {
        let sum = |index: usize| {
            stacks
                .iter()
                .filter_map(|stack| stack.values.get(index))
                .sum::<f64>()
        };
        let largest = (0..categories.len()).map(sum).fold(0.0, f64::max);
        let mut chart = builder(area)
            .build_cartesian_2d(-0.5..categories.len() as f64 - 0.5, 0.0..self.top(largest))
            .map_err(|error| error.to_string())?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(INK.mix(0.12))
            .axis_style(INK.mix(0.5))
            .label_style(("sans-serif", 13.5).into_font().color(&INK.mix(0.8)))
            .x_label_formatter(&|x| category(categories, *x))
            .y_label_formatter(&|y| plain(*y))
            .x_labels(categories.len().clamp(2, if self.wide { 24 } else { 12 }))
            .y_labels(6)
            .x_desc(self.x.as_str())
            .y_desc(self.y.as_str())
            .draw()
            .map_err(|error| error.to_string())?;
        // A few bars do not fill the plot.
        let half = 0.36 * (categories.len() as f64 / 6.0).min(1.0);
        for index in 0..categories.len() {
            let mut from = 0.0;
            for stack in stacks {
                let value = stack.values.get(index).copied().unwrap_or(0.0);
                if value > 0.0 {
                    let corners = [
                        (index as f64 - half, from),
                        (index as f64 + half, from + value),
                    ];
                    let bar = Rectangle::new(corners, rgb(stack.colour).filled());
                    chart
                        .draw_series(std::iter::once(bar))
                        .map_err(|error| error.to_string())?;
                    from += value;
                }
            }
        }
        Ok(())
    }
}

impl Chart {
    fn draw_groups(
        &self,
        area: &Area<'_>,
        categories: &[String],
        groups: &[Group],
    ) -> Result<(), String> {
        let values = groups
            .iter()
            .flat_map(|group| group.values.iter().flatten());
        let ends = groups
            .iter()
            .flat_map(|group| group.spread.iter().flatten().map(|ends| ends.1));
        let largest = values.copied().chain(ends).fold(0.0, f64::max);
        let mut chart = builder(area)
            .build_cartesian_2d(-0.5..categories.len() as f64 - 0.5, 0.0..self.top(largest))
            .map_err(|error| error.to_string())?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(INK.mix(0.12))
            .axis_style(INK.mix(0.5))
            .label_style(("sans-serif", 13.5).into_font().color(&INK.mix(0.8)))
            .x_label_formatter(&|x| category(categories, *x))
            .y_label_formatter(&|y| plain(*y))
            .x_labels(categories.len().clamp(2, 12))
            .y_labels(6)
            .x_desc(self.x.as_str())
            .y_desc(self.y.as_str())
            .draw()
            .map_err(|error| error.to_string())?;
        let width = 0.7 / groups.len().max(1) as f64;
        for (place, group) in groups.iter().enumerate() {
            let colour = rgb(group.colour);
            let offset = place as f64 * width - 0.35;
            for (index, value) in group.values.iter().enumerate() {
                let Some(value) = value else { continue };
                let from = index as f64 + offset;
                let corners = [(from + 0.02, 0.0), (from + width - 0.02, *value)];
                let bar = Rectangle::new(corners, colour.mix(0.85).filled());
                chart
                    .draw_series(std::iter::once(bar))
                    .map_err(|error| error.to_string())?;
                let Some(Some((low, high))) = group.spread.get(index) else {
                    continue;
                };
                let (middle, cap) = (from + width / 2.0, width * 0.2);
                let whisker = [
                    vec![(middle, *low), (middle, *high)],
                    vec![(middle - cap, *low), (middle + cap, *low)],
                    vec![(middle - cap, *high), (middle + cap, *high)],
                ];
                let whisker = whisker.map(|path| PathElement::new(path, INK.stroke_width(1)));
                chart
                    .draw_series(whisker)
                    .map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn builder<'a, 'b>(area: &'a Area<'b>) -> ChartBuilder<'a, 'b, SVGBackend<'b>> {
    let mut builder = ChartBuilder::on(area);
    builder
        .margin(8)
        .margin_right(16)
        .x_label_area_size(46)
        .y_label_area_size(64);
    builder
}

fn rgb(text: &str) -> RGBColor {
    let part = |at: usize| {
        text.get(at..at + 2)
            .and_then(|hex| u8::from_str_radix(hex, 16).ok())
            .unwrap_or(0)
    };
    RGBColor(part(1), part(3), part(5))
}

fn category(categories: &[String], x: f64) -> String {
    let index = x.round();
    if (x - index).abs() > 0.01 || index < 0.0 {
        return String::new();
    }
    categories.get(index as usize).cloned().unwrap_or_default()
}

/// Escapes text for HTML and attributes.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}

/// Sets text colour and size from the page, and an accessible name for screen readers.
fn finish(svg: &str, title: &str, size: (u32, u32)) -> String {
    let svg = svg.replace(INK_TEXT, "currentColor");
    let (width, height) = size;
    let fixed = format!("<svg width=\"{width}\" height=\"{height}\"");
    let fluid = format!(
        "<svg role=\"img\" aria-label=\"{}\" width=\"100%\"",
        escape(title)
    );
    svg.replacen(&fixed, &fluid, 1).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(points: Vec<(f64, f64)>) -> Series {
        Series {
            name: "p50 <ms>".to_owned(),
            points,
            colour: PALETTE[0],
            scatter: false,
            spread: Vec::new(),
        }
    }

    #[test]
    fn confidence_interval_is_drawn_at_each_point() {
        let bare = line(vec![(1.0, 2.0), (2.0, 3.0)]);
        let spread = Series {
            spread: vec![(1.0, 1.5, 2.5), (2.0, 2.0, 9.0)],
            ..bare.clone()
        };
        let lines = |series: Series| {
            let svg = Chart::lines("t", "x", "y", vec![series]).svg();
            svg.to_lowercase()
                .matches(&format!("stroke=\"{}\"", PALETTE[0]))
                .count()
        };
        assert_eq!(lines(spread), lines(bare) + 6);
    }

    #[test]
    fn plots_accept_any_numbers() {
        for points in [
            vec![],
            vec![(5.0, 0.0)],
            vec![(1.0, 2.0), (2.0, 3.0)],
            vec![(0.0, 1e9), (1e-9, 0.0)],
        ] {
            let chart = Chart::lines("a \"b\"", "x", "y", vec![line(points.clone())])
                .with_limit(Some(2.5), "limit");
            let svg = chart.svg();
            assert_eq!(chart.is_empty(), points.is_empty());
            if !points.is_empty() {
                assert!(
                    svg.starts_with("<svg role=\"img\" aria-label=\"a &quot;b&quot;\""),
                    "{svg}"
                );
                assert!(svg.contains("currentColor") && !svg.contains(INK_TEXT));
            }
        }
    }

    #[test]
    fn bars_are_drawn_per_class_and_category() {
        let stacks = vec![
            Stack {
                name: "<10".to_owned(),
                values: vec![100.0, 50.0],
                colour: CLASSES[0],
            },
            Stack {
                name: ">=200".to_owned(),
                values: vec![0.0, 0.0],
                colour: CLASSES[8],
            },
        ];
        let chart = Chart::stacks("t", "x", "y", vec!["100".into(), "200".into()], stacks);
        let svg = chart.svg().to_lowercase();
        assert_eq!(
            svg.matches(&format!("fill=\"{}\"", CLASSES[0])).count(),
            2,
            "{svg}"
        );
        assert_eq!(chart.legend(), [("<10", CLASSES[0])]);
    }

    #[test]
    fn numbers_are_short() {
        let written: Vec<String> = [0.0, 0.25, 1.5, 12.0, 1234.4].map(plain).into();
        assert_eq!(written, ["0", "0.25", "1.5", "12", "1234"]);
    }
}
