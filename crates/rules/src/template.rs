//! Templates: `${from.user}` is a fact, `$1` or `${name}` a capture group of the action's regular expression, `$$` a
//! `$`.

use crate::address::Part;
use crate::condition::parse_fact;
use crate::effects::MessageView;
use crate::fact::{Fact, Party, RuleNames, TextFact};
use crate::spec::Diagnosis;
use regex::{Captures, Regex, RegexBuilder};
use smallvec::SmallVec;
use wire::sip::HeaderId;

/// A regular expression of bounded size.
pub(crate) fn regular(text: &str) -> Result<Regex, Diagnosis> {
    RegexBuilder::new(text)
        .size_limit(1 << 20)
        .build()
        .map_err(|error| {
            let why = error.to_string();
            let why = why.lines().last().unwrap_or_default().trim().to_owned();
            Diagnosis::new(
                format!("\"{text}\" is not a valid regular expression: {why}"),
                "correct it; in TOML, '...' preserves backslashes",
            )
        })
}

#[derive(Clone, Debug)]
enum Piece {
    Plain(Box<[u8]>),
    Group(usize),
    Fact(Fact),
}

/// A text with placeholders.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    pieces: Vec<Piece>,
}

/// Text of a filled template.
pub(crate) type Filled = SmallVec<[u8; 128]>;

impl Template {
    /// Parses a template; capture groups refer to `regex`.
    pub(crate) fn parse(text: &str, regex: Option<&Regex>) -> Result<Template, Diagnosis> {
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
            let (piece, behind) = placeholder(rest, regex)?;
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

    /// The text, if there are no placeholders.
    pub(crate) fn constant(&self) -> Option<&[u8]> {
        match self.pieces.as_slice() {
            [] => Some(b""),
            [Piece::Plain(text)] => Some(text),
            _ => None,
        }
    }

    /// The header whose user is the whole text, if it is From or To.
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

    /// Appends the text with the placeholders filled in.
    pub(crate) fn fill(
        &self,
        view: &MessageView<'_>,
        names: &RuleNames,
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

/// Parses the placeholder behind a `$`, and returns the rest of the text.
fn placeholder<'t>(rest: &'t str, regex: Option<&Regex>) -> Result<(Piece, &'t str), Diagnosis> {
    if let Some(inner) = rest.strip_prefix('{') {
        // A `}` within a quoted key is not supported.
        let Some(end) = inner.find('}') else {
            return Err(Diagnosis::new(
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
        return Err(Diagnosis::new(
            "`$` without a placeholder",
            "write ${from.user} for a fact, $1 for a group, $$ for a `$`",
        ));
    }
    let (number, behind) = rest.split_at(digits);
    Ok((group(number, regex)?, behind))
}

/// A capture group by number, which the regular expression must have.
fn group(number: &str, regex: Option<&Regex>) -> Result<Piece, Diagnosis> {
    let Some(regex) = regex else {
        return Err(Diagnosis::new(
            format!("${number} refers to a group, but there is no regular expression"),
            "add `regex`, or write `$$` for a `$`",
        ));
    };
    match number.parse::<usize>() {
        Ok(index) if index < regex.captures_len() => Ok(Piece::Group(index)),
        _ => Err(Diagnosis::new(
            format!("the expression has no group {number}"),
            format!("its groups are 0 to {}", regex.captures_len() - 1),
        )),
    }
}
