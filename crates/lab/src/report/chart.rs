//! Plots as inline SVG, readable on a light and on a dark page.
//!
//! Axes and text are drawn in one marker colour that is then replaced by `currentColor`, so that the page sets it;
//! series have colours of medium lightness that are visible on both backgrounds. Each plot is drawn in several widths,
//! of which the page shows one, so that its labels are readable on a phone and on paper.

use super::marks::{MarkLink, MarkLinks, MarkShape};
use crate::decimal::{plain, tick};
use plotters::prelude::*;

/// Marker colour of axes and text until the SVG is written.
const INK: RGBColor = RGBColor(1, 2, 3);
const INK_TEXT: &str = "#010203";
/// Size of labels; plotters writes it divided by 1.24.
const FONT: f64 = 15.0;
/// Width of a character of a label, pixels.
const CHARACTER: f64 = 6.6;
/// Distance of lines of text, pixels.
const LINE: u32 = 16;
/// Number of labels of the y axis.
const Y_LABELS: usize = 6;
/// Half of the x axis of a plot with points at a single value, as a share of this value.
const SINGLE_SHARE: f64 = 0.1;
/// Most dots of a narrow plot.
const NARROW_DOTS: usize = 1_000;
/// Most points of a line that are drawn as dots, and that are links of their own.
const LINE_DOTS: usize = 60;
/// Points of the link over a whole line.
const LINK_POINTS: usize = 100;

/// Colours of series, chosen to be distinguishable with colour blindness.
pub const PALETTE: [&str; 6] = [
    "#3b82c4", "#e08a2e", "#2f9e77", "#c2557f", "#8a6fd1", "#7a8896",
];
/// Colours of ordered classes, from good to bad.
pub const CLASSES: [&str; 9] = [
    "#1f8a70", "#4ba36b", "#7fb563", "#b4bd5c", "#e0b850", "#e69a47", "#de7742", "#cf5242",
    "#a93348",
];

/// Width in which a plot is drawn; the page shows one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Width {
    /// On a phone.
    Narrow,
    /// Beside another plot, and on paper.
    Half,
    /// Across the page.
    Full,
}

impl Width {
    fn size(self) -> (u32, u32) {
        match self {
            Width::Narrow => (330, 290),
            Width::Half => (600, 310),
            Width::Full => (1160, 340),
        }
    }

    /// Class in the style of the page.
    fn class(self) -> &'static str {
        match self {
            Width::Narrow => "narrow",
            Width::Half => "half",
            Width::Full => "full",
        }
    }

    fn y_labels(self) -> u32 {
        match self {
            Width::Narrow => 48,
            Width::Half | Width::Full => 70,
        }
    }

    /// Pixels between the axes.
    fn inner(self) -> f64 {
        f64::from(self.size().0 - self.y_labels() - 24)
    }

    /// Number of labels of a numeric axis.
    fn x_labels(self) -> usize {
        match self {
            Width::Narrow => 5,
            Width::Half => 7,
            Width::Full => 12,
        }
    }
}

/// A text that is added to a drawn plot.
struct AddedText {
    at: (i32, i32),
    /// Degrees.
    turned: i32,
    /// `start`, `middle` or `end`.
    anchor: &'static str,
    text: String,
}

/// Texts and links that are added to a drawn plot.
#[derive(Default)]
struct AddedParts {
    texts: Vec<AddedText>,
    links: Vec<MarkLink>,
}

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
    /// Records of the points.
    pub links: MarkLinks,
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
    /// Records of the values.
    pub links: MarkLinks,
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
    /// Records of the values.
    pub links: MarkLinks,
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

    /// The record of a series as a whole, whose name in the legend may have its numbers.
    pub fn record_of(&self, name: &str) -> Option<&str> {
        let ChartBody::Lines(series) = &self.body else {
            return None;
        };
        let mut named = series.iter().filter(|series| series.name == name);
        match &named.next()?.links {
            MarkLinks::Whole(link) => Some(link.as_str()),
            MarkLinks::None | MarkLinks::Each(_) => None,
        }
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

    /// The plot in each width, of which the style shows one; a note if it cannot be drawn.
    pub fn html(&self) -> String {
        let widths: &[Width] = match self.wide {
            true => &[Width::Full, Width::Half, Width::Narrow],
            false => &[Width::Half, Width::Narrow],
        };
        let drawn = widths.iter().map(|width| {
            let (class, svg) = (width.class(), self.svg(*width));
            format!("<div class=\"plot {class}\">{svg}</div>")
        });
        drawn.collect()
    }

    fn svg(&self, width: Width) -> String {
        let mut svg = String::new();
        match self.draw(&mut svg, width) {
            Ok(added) => finish(&svg, &self.title, width.size(), &added),
            Err(error) => format!(
                "<p class=\"note\">{}: not drawn: {}</p>",
                escape(&self.title),
                escape(&error)
            ),
        }
    }

    fn draw(&self, svg: &mut String, width: Width) -> Result<AddedParts, String> {
        let area = SVGBackend::with_string(svg, width.size()).into_drawing_area();
        let added = match &self.body {
            ChartBody::Lines(series) => self.draw_lines(&area, width, series),
            ChartBody::Stacks { categories, stacks } => {
                self.draw_stacks(&area, width, categories, stacks)
            }
            ChartBody::Groups { categories, groups } => {
                self.draw_groups(&area, width, categories, groups)
            }
        }?;
        area.present().map_err(|error| error.to_string())?;
        Ok(added)
    }

    /// Empty axes with grid and labels, and the texts beside them.
    fn axes<'a, 'b>(
        &self,
        area: &'a Area<'b>,
        width: Width,
        (x, y): (std::ops::Range<f64>, std::ops::Range<f64>),
        categories: Option<&[String]>,
    ) -> Result<(Axes<'a, 'b>, Vec<AddedText>), String> {
        let (columns, rows) = width.size();
        let names = categories.unwrap_or_default();
        let longest = names.iter().map(|name| name.chars().count()).max();
        let text_width = longest.unwrap_or(0) as f64 * CHARACTER;
        let is_turned = text_width + 6.0 > width.inner() / names.len().max(1) as f64;
        // A text that is turned by 45 degrees is 0.71 of its length high.
        let turned = if is_turned {
            (text_width * 0.71) as u32
        } else {
            0
        };
        let lines = wrapped(&self.x, width.inner());
        let below = 26 + turned.min(rows / 3) + LINE * lines.len() as u32;
        let above = match width {
            Width::Narrow => wrapped(&self.y, f64::from(columns) - 16.0),
            Width::Half | Width::Full => Vec::new(),
        };
        let mut chart = ChartBuilder::on(area)
            .margin(8)
            .margin_right(16)
            .margin_top(8 + LINE * above.len() as u32)
            .x_label_area_size(below)
            .y_label_area_size(width.y_labels())
            .build_cartesian_2d(x.clone(), y.clone())
            .map_err(|error| error.to_string())?;
        let format_x = |value: &f64| match categories {
            Some(_) if is_turned => String::new(),
            Some(names) => category(names, *value),
            None => tick(*value, (x.end - x.start) / width.x_labels() as f64),
        };
        let format_y = |value: &f64| tick(*value, (y.end - y.start) / Y_LABELS as f64);
        let mut mesh = chart.configure_mesh();
        mesh.disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(INK.mix(0.12))
            .axis_style(INK.mix(0.5))
            .label_style(("sans-serif", FONT).into_font().color(&INK.mix(0.8)))
            .x_label_formatter(&format_x)
            .y_label_formatter(&format_y)
            .x_labels(match categories {
                Some(names) => names.len().clamp(2, 24),
                None => width.x_labels(),
            })
            .y_labels(Y_LABELS);
        if above.is_empty() {
            mesh.y_desc(self.y.as_str());
        }
        mesh.draw().map_err(|error| error.to_string())?;
        let mut texts = Vec::new();
        let bottom = chart.backend_coord(&(x.start, y.start)).1;
        if is_turned {
            // As many as fit beside each other.
            let step = (names.len() as f64 * 14.0 / width.inner()).ceil().max(1.0) as usize;
            for (place, name) in names.iter().enumerate().step_by(step) {
                let (x, y) = chart.backend_coord(&(place as f64, y.start));
                texts.push(AddedText {
                    at: (x + 4, y + 14),
                    turned: -45,
                    anchor: "end",
                    text: name.clone(),
                });
            }
        }
        let middle = columns as f64 - 16.0 - width.inner() / 2.0;
        let first = bottom + below as i32 - (LINE * lines.len() as u32) as i32 + 10;
        texts.extend(described(lines, (middle as i32, first), "middle"));
        texts.extend(described(above, (8, 16), "start"));
        Ok((chart, texts))
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

    fn draw_lines(
        &self,
        area: &Area<'_>,
        width: Width,
        series: &[Series],
    ) -> Result<AddedParts, String> {
        let points = || series.iter().flat_map(|series| series.points.iter());
        let (low, high) = points().fold((f64::MAX, f64::MIN), |(low, high), (x, _)| {
            (low.min(*x), high.max(*x))
        });
        let (low, high) = match points().next() {
            None => (0.0, 1.0),
            Some(_) if low < high => (low, high),
            Some(_) => {
                // One load alone has labels in steps of its size.
                let half = (low.abs() * SINGLE_SHARE).max(1.0);
                (low - half, low + half)
            }
        };
        let ends = series
            .iter()
            .flat_map(|series| series.spread.iter().map(|spread| spread.2));
        let largest = points()
            .map(|point| point.1)
            .chain(ends)
            .fold(0.0, f64::max);
        let starts = series
            .iter()
            .flat_map(|series| series.spread.iter().map(|spread| spread.1));
        // Differences can be negative.
        let smallest = points()
            .map(|point| point.1)
            .chain(starts)
            .fold(0.0, f64::min);
        let margin = (high - low) * 0.02;
        let y = smallest * 1.08..self.top(largest);
        let x = low - margin..high + margin;
        let (mut chart, texts) = self.axes(area, width, (x, y), None)?;
        let mut links = Vec::new();
        for one in series {
            let colour = rgb(one.colour);
            let radius = one.radius();
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
            // The links of a cloud draw its dots.
            let draws = match one.scatter {
                true => one.links == MarkLinks::None,
                false => one.points.len() <= LINE_DOTS,
            };
            if draws {
                let style = colour.mix(if one.scatter { 0.55 } else { 1.0 }).filled();
                let dots = one
                    .points
                    .iter()
                    .step_by(one.stride(width))
                    .map(|point| Circle::new(*point, radius, style));
                chart.draw_series(dots).map_err(|error| error.to_string())?;
            }
            links.extend(one.mark_links(width, |point| chart.backend_coord(point)));
        }
        if let Some((limit, name)) = self.limit.as_ref().filter(|limit| limit.0 <= largest * 2.0) {
            let line = [(low - margin, *limit), (high + margin, *limit)];
            let style = rgb("#cf5242").mix(0.9).stroke_width(1);
            chart
                .draw_series(DashedLineSeries::new(line, 6, 4, style))
                .map_err(|error| error.to_string())?;
            let font = ("sans-serif", 14).into_font().color(&rgb("#cf5242"));
            let at = (low - margin * 0.5, *limit);
            chart
                .draw_series(std::iter::once(Text::new(name.clone(), at, font)))
                .map_err(|error| error.to_string())?;
        }
        Ok(AddedParts { texts, links })
    }

    fn draw_stacks(
        &self,
        area: &Area<'_>,
        width: Width,
        categories: &[String],
        stacks: &[Stack],
    ) -> Result<AddedParts, String> {
        let sum = |index: usize| {
            stacks
                .iter()
                .filter_map(|stack| stack.values.get(index))
                .sum::<f64>()
        };
        let largest = (0..categories.len()).map(sum).fold(0.0, f64::max);
        let ends = (-0.5..categories.len() as f64 - 0.5, 0.0..self.top(largest));
        let (mut chart, texts) = self.axes(area, width, ends, Some(categories))?;
        let mut links = Vec::new();
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
                    links.extend(stack.links.of(index).map(|href| MarkLink {
                        href: href.to_owned(),
                        title: bar_title(categories, index, &stack.name, value),
                        shape: MarkShape::Bar(corners.map(|at| chart.backend_coord(&at))),
                    }));
                }
            }
        }
        Ok(AddedParts { texts, links })
    }
}

impl Series {
    fn radius(&self) -> u32 {
        if self.points.len() > 400 { 1 } else { 3 }
    }

    /// One point in so many is drawn as a dot.
    fn stride(&self, width: Width) -> usize {
        match width {
            Width::Narrow => self.points.len().div_ceil(NARROW_DOTS).max(1),
            Width::Half | Width::Full => 1,
        }
    }

    /// Links over the points, whose pixels `at` gives.
    fn mark_links(&self, width: Width, at: impl Fn(&(f64, f64)) -> (i32, i32)) -> Vec<MarkLink> {
        if let (MarkLinks::Whole(href), false) = (&self.links, self.points.len() < 2) {
            let stride = self.points.len().div_ceil(LINK_POINTS).max(1);
            let mut line: Vec<(i32, i32)> = self.points.iter().step_by(stride).map(&at).collect();
            line.extend(self.points.last().map(&at));
            return vec![MarkLink {
                href: href.clone(),
                title: self.name.clone(),
                shape: MarkShape::Line(line),
            }];
        }
        let stride = match self.scatter {
            true => self.stride(width),
            false => self.points.len().div_ceil(LINE_DOTS).max(1),
        };
        let points = self.points.iter().enumerate().step_by(stride);
        let links = points.filter_map(|(place, point)| {
            let href = self.links.of(place)?;
            let shape = match self.scatter && self.links != MarkLinks::None {
                true => MarkShape::Drawn(at(point), self.radius(), self.colour),
                false => MarkShape::Dot(at(point)),
            };
            Some(MarkLink {
                href: href.to_owned(),
                title: format!("{}: {}, {}", self.name, plain(point.0), plain(point.1)),
                shape,
            })
        });
        links.collect()
    }
}

fn bar_title(categories: &[String], index: usize, name: &str, value: f64) -> String {
    let category = categories.get(index).map_or("", String::as_str);
    format!("{category}, {name}: {}", plain(value))
}

impl Chart {
    fn draw_groups(
        &self,
        area: &Area<'_>,
        width: Width,
        categories: &[String],
        groups: &[Group],
    ) -> Result<AddedParts, String> {
        let values = groups
            .iter()
            .flat_map(|group| group.values.iter().flatten());
        let ends = groups
            .iter()
            .flat_map(|group| group.spread.iter().flatten().map(|ends| ends.1));
        let largest = values.copied().chain(ends).fold(0.0, f64::max);
        let ends = (-0.5..categories.len() as f64 - 0.5, 0.0..self.top(largest));
        let (mut chart, texts) = self.axes(area, width, ends, Some(categories))?;
        let mut links = Vec::new();
        let bar_width = 0.7 / groups.len().max(1) as f64;
        for (place, group) in groups.iter().enumerate() {
            let colour = rgb(group.colour);
            let offset = place as f64 * bar_width - 0.35;
            for (index, value) in group.values.iter().enumerate() {
                let Some(value) = value else { continue };
                let from = index as f64 + offset;
                let corners = [(from + 0.02, 0.0), (from + bar_width - 0.02, *value)];
                let bar = Rectangle::new(corners, colour.mix(0.85).filled());
                chart
                    .draw_series(std::iter::once(bar))
                    .map_err(|error| error.to_string())?;
                links.extend(group.links.of(index).map(|href| MarkLink {
                    href: href.to_owned(),
                    title: bar_title(categories, index, &group.name, *value),
                    shape: MarkShape::Bar(corners.map(|at| chart.backend_coord(&at))),
                }));
                let Some(Some((low, high))) = group.spread.get(index) else {
                    continue;
                };
                let (middle, cap) = (from + bar_width / 2.0, bar_width * 0.2);
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
        Ok(AddedParts { texts, links })
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Numbers = plotters::coord::types::RangedCoordf64;
type Axes<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Numbers, Numbers>>;

/// A description in lines of this width in pixels; none for an empty one.
fn wrapped(text: &str, width: f64) -> Vec<String> {
    let most = (width / CHARACTER) as usize;
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + word.chars().count() < most => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

fn described(
    lines: Vec<String>,
    (x, y): (i32, i32),
    anchor: &'static str,
) -> impl Iterator<Item = AddedText> {
    let line = move |(place, text): (usize, String)| AddedText {
        at: (x, y + place as i32 * LINE as i32),
        turned: 0,
        anchor,
        text,
    };
    lines.into_iter().enumerate().map(line)
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

/// Sets text colour and size from the page, adds texts and links, and an accessible name for screen readers.
fn finish(svg: &str, title: &str, size: (u32, u32), parts: &AddedParts) -> String {
    let svg = svg.replace(INK_TEXT, "currentColor");
    let (width, height) = size;
    let fixed = format!("<svg width=\"{width}\" height=\"{height}\"");
    let fluid = format!(
        "<svg role=\"img\" aria-label=\"{}\" width=\"100%\"",
        escape(title)
    );
    let svg = svg.replacen(&fixed, &fluid, 1);
    let links: String = parts.links.iter().map(MarkLink::svg).collect();
    let added: String = parts
        .texts
        .iter()
        .map(|text| {
            let (x, y) = text.at;
            let turned = match text.turned {
                0 => String::new(),
                degrees => format!(" transform=\"rotate({degrees},{x},{y})\""),
            };
            format!(
                "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{}\" font-size=\"{:.1}\" opacity=\"0.8\" fill=\"currentColor\"{turned}>{}</text>",
                text.anchor,
                FONT / 1.24,
                escape(&text.text)
            )
        })
        .collect();
    let end = svg.rfind("</svg>").unwrap_or(svg.len());
    let (before, after) = svg.split_at(end);
    format!("{before}{added}{links}{after}").trim().to_owned()
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
            links: MarkLinks::None,
        }
    }

    /// Addresses of the links of a plot.
    fn hrefs(svg: &str) -> Vec<&str> {
        let links = svg.split("<a href=\"").skip(1);
        links.filter_map(|rest| rest.split('"').next()).collect()
    }

    #[test]
    fn points_and_bars_are_links() {
        let each =
            |names: &[&str]| MarkLinks::Each(names.iter().map(|name| (*name).to_owned()).collect());
        let points = Series {
            links: each(&["a?1&2", "", "c"]),
            ..line(vec![(1.0, 2.0), (2.0, 3.0), (3.0, 4.0)])
        };
        let svg = Chart::lines("t", "x", "y", vec![points.clone()]).svg(Width::Half);
        assert_eq!(hrefs(&svg), ["a?1&amp;2", "c"]);
        assert!(svg.contains("<title>p50 &lt;ms&gt;: 1, 2</title>"), "{svg}");
        // The dots of the line, and the links over two of them.
        assert_eq!(svg.matches("<circle").count(), 3 + 2);
        // The links of a cloud draw its dots.
        let cloud = Series {
            scatter: true,
            links: each(&["a", "b", "c"]),
            ..points.clone()
        };
        let svg = Chart::lines("t", "x", "y", vec![cloud]).svg(Width::Half);
        assert_eq!(hrefs(&svg), ["a", "b", "c"]);
        assert_eq!(svg.matches("<circle").count(), 3);
        let many = Series {
            links: MarkLinks::Whole("all".to_owned()),
            ..line((0..900).map(|n| (f64::from(n), 1.0)).collect())
        };
        let chart = Chart::lines("t", "x", "y", vec![many]);
        assert_eq!(hrefs(&chart.svg(Width::Half)), ["all"]);
        assert_eq!(chart.record_of("p50 <ms>"), Some("all"));
        let names = || vec!["one".to_owned(), "two".to_owned()];
        let stack = |name: &str, links: &[&str]| Stack {
            name: name.to_owned(),
            values: vec![1.0, 0.0],
            colour: CLASSES[0],
            links: each(links),
        };
        // A class without attempts has no bar.
        let stacks = vec![stack("a", &["a1", "a2"]), stack("b", &["b1", "b2"])];
        let svg = Chart::stacks("t", "x", "y", names(), stacks).svg(Width::Half);
        assert_eq!(hrefs(&svg), ["a1", "b1"]);
        let group = Group {
            name: "g".to_owned(),
            values: vec![Some(0.0), None],
            spread: Vec::new(),
            colour: PALETTE[0],
            links: each(&["g1", "g2"]),
        };
        // A bar of nothing has a link that can be hit.
        let svg = Chart::groups("t", "x", "y", names(), vec![group]).svg(Width::Half);
        assert_eq!(hrefs(&svg), ["g1"]);
        assert!(svg.contains("height=\"8\" fill=\"transparent\""), "{svg}");
        assert!(svg.contains("<title>one, g: 0</title>"), "{svg}");
    }

    #[test]
    fn confidence_interval_is_drawn_at_each_point() {
        let bare = line(vec![(1.0, 2.0), (2.0, 3.0)]);
        let spread = Series {
            spread: vec![(1.0, 1.5, 2.5), (2.0, 2.0, 9.0)],
            ..bare.clone()
        };
        let lines = |series: Series| {
            let svg = Chart::lines("t", "x", "y", vec![series]).svg(Width::Half);
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
            let svg = chart.svg(Width::Narrow);
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

    /// Numbers that are texts of a plot.
    fn labels(svg: &str) -> Vec<f64> {
        let texts = svg.split("</text>").filter_map(|part| {
            let (_, text) = part.rsplit_once('>')?;
            text.trim().parse().ok()
        });
        texts.collect()
    }

    #[test]
    fn labels_of_an_axis_differ() {
        for (points, x_labels) in [
            // One load alone; loads that are close to each other; times of a fraction of a millisecond.
            (vec![(950.0, 11.5)], vec![900.0, 950.0, 1_000.0]),
            (vec![(949.0, 3.0), (950.5, 2.0)], vec![949.0, 949.5, 950.0]),
            (vec![(0.0, 4e-4), (1.0, 2e-4)], vec![0.0, 1.0]),
        ] {
            let chart = Chart::lines("t", "x", "y", vec![line(points.clone())]);
            for width in [Width::Narrow, Width::Half] {
                let found = labels(&chart.svg(width));
                for wanted in &x_labels {
                    let same = |label: &&f64| (**label - wanted).abs() < 1e-9;
                    assert!(found.iter().any(|l| same(&l)), "{wanted}: {found:?}");
                }
                // Each axis begins anew; within it no label occurs twice.
                let steps = found.windows(2).filter(|pair| pair[0] == pair[1]);
                assert_eq!(steps.count(), 0, "{found:?}");
            }
        }
    }

    #[test]
    fn labels_of_a_narrow_plot_are_wrapped_and_turned() {
        let names: Vec<String> = (0..9).map(|n| format!("protection {n}")).collect();
        let stack = Stack {
            name: "loss".to_owned(),
            values: vec![1.0; 9],
            colour: CLASSES[0],
            links: MarkLinks::None,
        };
        let x = "mean jitter of a stream, ms (lower end of each bar)";
        let chart = Chart::stacks("t", x, "y", names, vec![stack]).with_full_width();
        let narrow = chart.svg(Width::Narrow);
        assert!(narrow.contains("viewBox=\"0 0 330 "), "{narrow}");
        assert_eq!(narrow.matches("rotate(-45").count(), 9);
        // Two lines, of which none has the whole text.
        assert!(!narrow.contains(x) && narrow.contains(">mean jitter of a stream, ms"));
        let full = chart.svg(Width::Full);
        assert!(full.contains(x) && !full.contains("rotate(-45"), "{full}");
        let html = chart.html();
        for class in ["plot full", "plot half", "plot narrow"] {
            assert_eq!(html.matches(class).count(), 1, "{class}");
        }
    }

    #[test]
    fn bars_are_drawn_per_class_and_category() {
        let stacks = vec![
            Stack {
                name: "<10".to_owned(),
                values: vec![100.0, 50.0],
                colour: CLASSES[0],
                links: MarkLinks::None,
            },
            Stack {
                name: ">=200".to_owned(),
                values: vec![0.0, 0.0],
                colour: CLASSES[8],
                links: MarkLinks::None,
            },
        ];
        let chart = Chart::stacks("t", "x", "y", vec!["100".into(), "200".into()], stacks);
        let svg = chart.svg(Width::Half).to_lowercase();
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
