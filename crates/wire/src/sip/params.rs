//! Parameters: `;name=value` of URIs and headers, `name=value,` of authentication.

use super::list::{closing_quote, find_outside, trim};
use super::message::is_lws;
use super::words::{all_zeros, eight, first_of, place, through, zeros};
use std::borrow::Cow;

/// One parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Param<'a> {
    /// The name, without regard to case.
    pub name: &'a [u8],
    /// The value as it came, quotes included; `None` where there is no `=`.
    pub value: Option<&'a [u8]>,
}

/// Parameters separated by semicolons. The bytes begin behind the first semicolon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Params<'a> {
    bytes: &'a [u8],
}

impl<'a> Params<'a> {
    /// Parameters from what stands behind the first semicolon.
    pub fn new(bytes: &'a [u8]) -> Params<'a> {
        Params { bytes }
    }

    /// The bytes as they came, without the first semicolon.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        trim(self.bytes).is_empty()
    }

    /// The parameters in order; empty ones between two semicolons are left out.
    pub fn iter(&self) -> impl Iterator<Item = Param<'a>> + Clone + use<'a> {
        Split {
            rest: Some(self.bytes),
            separator: b';',
        }
        .map(param)
        .filter(|param| !param.name.is_empty() || param.value.is_some())
    }

    /// The first parameter of this name: `None` absent, `Some(None)` without value.
    pub fn find(&self, name: &[u8]) -> Option<Option<&'a [u8]>> {
        if name.is_empty() {
            return self.find_carefully(name);
        }
        let mut rest = self.bytes;
        loop {
            let end = first_of([b';', b'"', b'<'], rest);
            let (piece, behind) = rest.split_at(end.unwrap_or(rest.len()));
            let blank = piece.first().is_some_and(|byte| is_lws(*byte));
            if blank || matches!(behind, [b'"' | b'<', ..]) {
                return Params::new(rest).find_carefully(name);
            }
            if let Some((here, value)) = piece.split_at_checked(name.len())
                && here.eq_ignore_ascii_case(name)
            {
                match value {
                    [] => return Some(None),
                    [b'=', value @ ..] => return Some(Some(trim(value))),
                    [byte, ..] if is_lws(*byte) => {
                        return Params::new(rest).find_carefully(name);
                    }
                    _ => {}
                }
            }
            let [_, next @ ..] = behind else {
                return None;
            };
            rest = next;
        }
    }

    /// The same with quotes, brackets and white space.
    fn find_carefully(&self, name: &[u8]) -> Option<Option<&'a [u8]>> {
        self.iter()
            .find(|param| param.name.eq_ignore_ascii_case(name))
            .map(|param| param.value)
    }

    /// The value of the first parameter of this name; empty where it has no value.
    pub fn get(&self, name: &[u8]) -> Option<&'a [u8]> {
        self.find(name).map(Option::unwrap_or_default)
    }

    /// Whether there is a parameter of this name.
    pub fn has(&self, name: &[u8]) -> bool {
        self.find(name).is_some()
    }

    /// Whether every piece is a parameter: no empty ones, no name missing, quotes closed.
    pub(super) fn well_formed(&self) -> bool {
        self.bytes.is_empty()
            || self
                .plainly_well_formed()
                .unwrap_or_else(|| self.slowly_well_formed())
    }

    /// The quick answer; `None` where quotes, brackets or white space ask for more care.
    fn plainly_well_formed(&self) -> Option<bool> {
        let names = |from: usize| !matches!(self.bytes.get(from), None | Some(b';' | b'='));
        let mut sound = names(0);
        let careful = through(self.bytes, b'x', |at, word| {
            // The space, and control characters, which have none of the upper three bits.
            let blank = zeros(word & eight(0xe0)) | zeros(word ^ eight(b' '));
            if blank | zeros(word ^ eight(b'"')) | zeros(word ^ eight(b'<')) != 0 {
                return Some(());
            }
            let mut semicolons = all_zeros(word ^ eight(b';'));
            while semicolons != 0 {
                sound &= names(at + place(semicolons) + 1);
                semicolons &= semicolons - 1;
            }
            None
        });
        careful.is_none().then_some(sound)
    }

    fn slowly_well_formed(&self) -> bool {
        let mut pieces = Split {
            rest: Some(self.bytes),
            separator: b';',
        };
        pieces.all(|piece| {
            let param = param(piece);
            !param.name.is_empty()
                && !param.name.iter().any(|byte| is_lws(*byte))
                && param.value.is_none_or(quotes_closed)
        })
    }
}

/// A value is a whole quoted string, or has no quote in it.
fn quotes_closed(value: &[u8]) -> bool {
    match value {
        [b'"', inner @ ..] => closing_quote(inner) == inner.len().checked_sub(1),
        _ => memchr::memchr(b'"', value).is_none(),
    }
}

/// Splits at a separator outside quotes and `<>`.
#[derive(Clone, Debug)]
struct Split<'a> {
    rest: Option<&'a [u8]>,
    separator: u8,
}

impl<'a> Iterator for Split<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let rest = self.rest?;
        match find_outside(rest, 0, self.separator) {
            Some(at) => {
                self.rest = rest.get(at + 1..);
                rest.get(..at)
            }
            None => {
                self.rest = None;
                Some(rest)
            }
        }
    }
}

fn param(piece: &[u8]) -> Param<'_> {
    match memchr::memchr(b'=', piece) {
        Some(equals) => Param {
            name: trim(piece.get(..equals).unwrap_or_default()),
            value: Some(trim(piece.get(equals + 1..).unwrap_or_default())),
        },
        None => Param {
            name: trim(piece),
            value: None,
        },
    }
}

/// `name=value` pairs separated by commas: challenges, credentials, Authentication-Info.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AuthParams<'a> {
    bytes: &'a [u8],
}

impl<'a> AuthParams<'a> {
    /// Parameters from what stands behind the scheme.
    pub fn new(bytes: &'a [u8]) -> AuthParams<'a> {
        AuthParams { bytes }
    }

    /// The parameters in order.
    pub fn iter(&self) -> impl Iterator<Item = Param<'a>> + Clone + use<'a> {
        Split {
            rest: Some(self.bytes),
            separator: b',',
        }
        .map(param)
        .filter(|param| !param.name.is_empty())
    }

    /// The value of the first parameter of this name, quotes included; see [`unquote`].
    pub fn get(&self, name: &[u8]) -> Option<&'a [u8]> {
        self.iter()
            .find(|param| param.name.eq_ignore_ascii_case(name))
            .and_then(|param| param.value)
    }
}

/// The text of a quoted string: quotes taken off, escapes undone (borrowed where there is no escape). A value without
/// quotes is given back as it is.
pub fn unquote(value: &[u8]) -> Cow<'_, [u8]> {
    let [b'"', inner @ ..] = value else {
        return Cow::Borrowed(value);
    };
    let inner = inner.strip_suffix(b"\"").unwrap_or(inner);
    if memchr::memchr(b'\\', inner).is_none() {
        return Cow::Borrowed(inner);
    }
    let mut text = Vec::with_capacity(inner.len());
    let mut escaped = false;
    for byte in inner {
        match byte {
            b'\\' if !escaped => escaped = true,
            _ => {
                escaped = false;
                text.push(*byte);
            }
        }
    }
    Cow::Owned(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The quick search finds what the careful one finds.
        #[test]
        fn both_searches_agree(text in "[abA;= \"<>]{0,14}", name in "[ab]{0,2}") {
            let params = Params::new(text.as_bytes());
            prop_assert_eq!(params.find(name.as_bytes()), params.find_carefully(name.as_bytes()));
        }

        /// The quick judgement is the careful one.
        #[test]
        fn both_judgements_agree(text in "[a;= \"<>]{0,12}") {
            let params = Params::new(text.as_bytes());
            if let Some(quick) = params.plainly_well_formed() {
                prop_assert_eq!(quick, params.slowly_well_formed());
            }
        }
    }
}
