//! Links over the points and bars of a plot, to the records of their numbers.

use super::chart::escape;

/// Size of the link over a dot of a line, and least height of that over a bar, pixels.
const LINK_RADIUS: u32 = 7;
const LINK_HEIGHT: i32 = 8;

/// Addresses of the records of a series, or of the bars of a class or group.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum MarkLinks {
    /// None.
    #[default]
    None,
    /// One of the whole line.
    Whole(String),
    /// One of each point or bar; empty: none.
    Each(Vec<String>),
}

impl MarkLinks {
    /// The address for a point or bar.
    pub(super) fn of(&self, place: usize) -> Option<&str> {
        let link = match self {
            MarkLinks::None => None,
            MarkLinks::Whole(link) => Some(link),
            MarkLinks::Each(links) => links.get(place),
        };
        link.map(String::as_str).filter(|link| !link.is_empty())
    }
}

/// A link over a mark of a drawn plot.
pub(super) struct MarkLink {
    /// Address.
    pub href: String,
    /// Shown while the pointer is over it.
    pub title: String,
    /// Its pixels.
    pub shape: MarkShape,
}

/// Pixels of a link.
pub(super) enum MarkShape {
    /// A dot that is drawn already.
    Dot((i32, i32)),
    /// A dot of a cloud, which the link draws.
    Drawn((i32, i32), u32, &'static str),
    /// Two corners of a bar.
    Bar([(i32, i32); 2]),
    /// A line.
    Line(Vec<(i32, i32)>),
}

impl MarkLink {
    /// As SVG.
    pub(super) fn svg(&self) -> String {
        let shape = match &self.shape {
            MarkShape::Dot((x, y)) => {
                format!("<circle cx=\"{x}\" cy=\"{y}\" r=\"{LINK_RADIUS}\" fill=\"transparent\"/>")
            }
            MarkShape::Drawn((x, y), radius, colour) => format!(
                "<circle cx=\"{x}\" cy=\"{y}\" r=\"{radius}\" opacity=\"0.55\" fill=\"{colour}\"/>"
            ),
            MarkShape::Bar([(x0, y0), (x1, y1)]) => {
                let (left, bottom) = (x0.min(x1), y0.max(y1));
                let width = (x1 - x0).abs().max(1);
                let height = (y1 - y0).abs().max(LINK_HEIGHT);
                format!(
                    "<rect x=\"{left}\" y=\"{}\" width=\"{width}\" height=\"{height}\" fill=\"transparent\"/>",
                    bottom - height
                )
            }
            MarkShape::Line(points) => {
                let points: Vec<String> = points.iter().map(|(x, y)| format!("{x},{y}")).collect();
                format!(
                    "<polyline points=\"{}\" fill=\"none\" stroke=\"transparent\" stroke-width=\"9\" pointer-events=\"stroke\"/>",
                    points.join(" ")
                )
            }
        };
        // The tables have the same numbers: hundreds of dots are no stops of the keyboard.
        format!(
            "<a href=\"{}\" tabindex=\"-1\"><title>{}</title>{shape}</a>",
            escape(&self.href),
            escape(&self.title)
        )
    }
}
