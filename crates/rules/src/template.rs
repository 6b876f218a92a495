//! Texts with places to fill in: `${from.user}` a fact, `$1` or `${name}` a group of the action's expression, `$$` a `$`.

use crate::address::Part;
use crate::condition::parse_fact;
use crate::effects::View;
use crate::fact::{Fact, Names, Party, TextFact};
use crate::spec::Wrong;
use regex::{Captures, Regex, RegexBuilder};
use smallvec::SmallVec;
use wire::sip::HeaderId;

/// A regular expression of bounded size.
pub(crate) fn regular(text: &str) -> Result<Regex, Wrong> {
    RegexBuilder::new(text)
        .size_limit(1 << 20)
        .build()
        .map_err(|error| {
            let why = error.to_string();
            let why = why.lines().last().unwrap_or_default().trim().to_owned();
            Wrong::new(
                format!("\"{text}\" is no regular expression: {why}"),
                "correct it; in TOML, '...' keeps backslashes as they are",
            )
        })
}

#[derive(Clone, Debug)]
enum Piece {
    Plain(Box<[u8]>),
    Group(usize),
    Fact(Fact),
}

/// A text with places to fill in.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    pieces: Vec<Piece>,
}

/// What a template makes.
pub(crate) type Filled = SmallVec<[u8; 128]>;

impl Template {
    /// Reads a template; groups are those of `regex`.
    pub(crate) fn parse(text: &str, regex: Option<&Regex>) -> Result<Template, Wrong> {
        let mut pieces = Vec::new();
        let mut plain = Vec::new();
        let mut rest = text;
        while let Some(at) = rest.find('$') {
            plain.extend_from_slice(rest.get(..at).unwrap_or_default().as_bytes());
            rest = rest.get(at + 1..).unwrap_or_default();
            if let Some(behind) = rest.strip_prefix('$') {
                plain.push(b'$');
                rest = behind;
                continue;
            }
            let (piece, behind) = place(rest, regex)?;
            if !plain.is_empty() {
                pieces.push(Piece::Plain(std::mem::take(&mut plain).into()));
            }
            pieces.push(piece);
            rest = behind;
        }
        plain.extend_from_slice(rest.as_bytes());
        if !plain.is_empty() {
            pieces.push(Piece::Plain(plain.into()));
        }
        Ok(Template { pieces })
    }

    /// The text, where it has no places to fill in.
    pub(crate) fn constant(&self) -> Option<&[u8]> {
        match self.pieces.as_slice() {
            [] => Some(b""),
            [Piece::Plain(text)] => Some(text),
            _ => None,
        }
    }

    /// The header whose user is all of the text, where it is From or To.
    pub(crate) fn user_of(&self) -> Option<HeaderId> {
        match self.pieces.as_slice() {
            [Piece::Fact(Fact::Text(TextFact::Part(Party::Header(name), Part::User)))]
                if matches!(name.id, HeaderId::From | HeaderId::To) =>
            {
                Some(name.id)
            }
            _ => None,
        }
    }

    /// Fills in.
    pub(crate) fn fill(
        &self,
        view: &View<'_>,
        names: &Names,
        groups: Option<&Captures<'_>>,
        out: &mut Filled,
    ) {
        for piece in &self.pieces {
            match piece {
                Piece::Plain(text) => out.extend_from_slice(text),
                Piece::Group(group) => {
                    let found = groups.and_then(|groups| groups.get(*group));
                    out.extend_from_slice(found.map_or("", |found| found.as_str()).as_bytes());
                }
                Piece::Fact(Fact::Text(fact)) => view.append_text(fact, names, out),
                Piece::Fact(Fact::Int(fact)) => {
                    out.extend_from_slice(view.int(fact).to_string().as_bytes());
                }
                Piece::Fact(Fact::Bool(fact)) => {
                    let word: &[u8] = if view.bool(fact) { b"true" } else { b"false" };
                    out.extend_from_slice(word);
                }
                Piece::Fact(Fact::Texts(name)) => {
                    for (index, value) in view.texts(name).iter().enumerate() {
                        if index > 0 {
                            out.extend_from_slice(b", ");
                        }
                        out.extend_from_slice(value.as_bytes());
                    }
                }
            }
        }
    }
}

/// The place that begins behind a `$`, and what follows it.
fn place<'t>(rest: &'t str, regex: Option<&Regex>) -> Result<(Piece, &'t str), Wrong> {
    if let Some(inner) = rest.strip_prefix('{') {
        // A fact's key may have braces in quotes only where nobody needs them.
        let Some(end) = inner.find('}') else {
            return Err(Wrong::new(
                "`${` without `}`",
                "close it, or write `$$` for a `$`",
            ));
        };
        let name = inner.get(..end).unwrap_or_default().trim();
        let behind = inner.get(end + 1..).unwrap_or_default();
        let numbered = name.bytes().all(|byte| byte.is_ascii_digit()) && !name.is_empty();
        let named =
            regex.and_then(|regex| regex.capture_names().position(|known| known == Some(name)));
        return match (numbered, named) {
            (true, _) => Ok((group(name, regex)?, behind)),
            (_, Some(index)) => Ok((Piece::Group(index), behind)),
            _ => Ok((Piece::Fact(parse_fact(name)?), behind)),
        };
    }
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    if digits == 0 {
        return Err(Wrong::new(
            "`$` with nothing to fill in",
            "write ${from.user} for a fact, $1 for a group, $$ for a `$`",
        ));
    }
    let (number, behind) = rest.split_at(digits);
    Ok((group(number, regex)?, behind))
}

fn group(number: &str, regex: Option<&Regex>) -> Result<Piece, Wrong> {
    let Some(regex) = regex else {
        return Err(Wrong::new(
            format!("there is no expression whose group ${number} could be"),
            "add `regex`, or write `$$` for a `$`",
        ));
    };
    match number.parse::<usize>() {
        Ok(index) if index < regex.captures_len() => Ok(Piece::Group(index)),
        _ => Err(Wrong::new(
            format!("the expression has no group {number}"),
            format!("its groups are 0 to {}", regex.captures_len() - 1),
        )),
    }
}
