//! Parameters: `;name=value` of URIs and headers, `name=value,` of authentication.

use super::list::{closing_quote, find_outside, trim};
use super::message::is_lws;
use super::vector::{all_zeros, byte_index, find_in_words, first_of, splat, zeros};
use std::borrow::Cow;

/// One parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Param<'a> {
    /// The name; case is insignificant.
    pub name: &'a [u8],
    /// The value, quotes included; `None` without `=`.
    pub value: Option<&'a [u8]>,
}

/// Parameters separated by semicolons. The bytes begin after the first semicolon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Params<'a> {
    bytes: &'a [u8],
}

impl<'a> Params<'a> {
    /// Parameters from the text after the first semicolon.
    pub fn new(bytes: &'a [u8]) -> Params<'a> {
        Params { bytes }
    }

    /// The bytes, without the first semicolon.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        trim(self.bytes).is_empty()
    }

    /// The parameters in order; empty ones are skipped.
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
            return self.find_full(name);
        }
        let mut rest = self.bytes;
        loop {
            let end = first_of([b';', b'"', b'<'], rest);
            let (piece, behind) = rest.split_at(end.unwrap_or(rest.len()));
            let blank = piece.first().is_some_and(|byte| is_lws(*byte));
            if blank || matches!(behind, [b'"' | b'<', ..]) {
                return Params::new(rest).find_full(name);
            }
            if let Some((here, value)) = piece.split_at_checked(name.len())
                && here.eq_ignore_ascii_case(name)
            {
                match value {
                    [] => return Some(None),
                    [b'=', value @ ..] => return Some(Some(trim(value))),
                    [byte, ..] if is_lws(*byte) => {
                        return Params::new(rest).find_full(name);
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

    /// As [`Params::find`], for values with quotes, brackets and white space.
    fn find_full(&self, name: &[u8]) -> Option<Option<&'a [u8]>> {
        self.iter()
            .find(|param| param.name.eq_ignore_ascii_case(name))
            .map(|param| param.value)
    }

    /// The value of the first parameter of this name; empty if it has no value.
    pub fn get(&self, name: &[u8]) -> Option<&'a [u8]> {
        self.find(name).map(Option::unwrap_or_default)
    }

    /// Whether there is a parameter of this name.
    pub fn has(&self, name: &[u8]) -> bool {
        self.find(name).is_some()
    }

    /// Whether every element is a parameter: none empty, none without a name, quotes closed.
    pub(super) fn well_formed(&self) -> bool {
        self.bytes.is_empty()
            || self
                .well_formed_fast()
                .unwrap_or_else(|| self.well_formed_full())
    }

    /// The fast check; `None` if quotes, brackets or white space require the full one.
    fn well_formed_fast(&self) -> Option<bool> {
        let names = |from: usize| !matches!(self.bytes.get(from), None | Some(b';' | b'='));
        let mut sound = names(0);
        let careful = find_in_words(self.bytes, b'x', |at, word| {
            // Space and control characters have none of the upper three bits.
            let blank = zeros(word & splat(0xe0)) | zeros(word ^ splat(b' '));
            if blank | zeros(word ^ splat(b'"')) | zeros(word ^ splat(b'<')) != 0 {
                return Some(());
            }
            let mut semicolons = all_zeros(word ^ splat(b';'));
            while semicolons != 0 {
                sound &= names(at + byte_index(semicolons) + 1);
                semicolons &= semicolons - 1;
            }
            None
        });
        careful.is_none().then_some(sound)
    }

    fn well_formed_full(&self) -> bool {
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

/// Whether a value is one quoted string, or contains no quote.
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
    /// Parameters from the text after the scheme.
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

/// The text of a quoted string without quotes and escapes (borrowed if it has no escape). A value without quotes is
/// returned unmodified.
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
        /// The fast search agrees with the full one.
        #[test]
        fn fast_search_agrees_with_full_search(text in "[abA;= \"<>]{0,14}", name in "[ab]{0,2}") {
            let params = Params::new(text.as_bytes());
            prop_assert_eq!(params.find(name.as_bytes()), params.find_full(name.as_bytes()));
        }

        /// The fast check agrees with the full one.
        #[test]
        fn fast_check_agrees_with_full_check(text in "[a;= \"<>]{0,12}") {
            let params = Params::new(text.as_bytes());
            if let Some(quick) = params.well_formed_fast() {
                prop_assert_eq!(quick, params.well_formed_full());
            }
        }
    }
}
