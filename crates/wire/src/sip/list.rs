//! Splitting of header values at commas and semicolons outside of quotes and angle brackets.

use super::message::is_lws;
use super::vector::first_of;
use memchr::{memchr, memchr2, memchr3};

/// The next offset of `separator` in `value` at or after `from`, outside quoted strings and `<>`. Linear.
pub(super) fn find_outside(value: &[u8], from: usize, separator: u8) -> Option<usize> {
    // Most values have neither quotes nor brackets before their separator.
    let at = from + first_of([separator, b'"', b'<'], value.get(from..)?)?;
    match value.get(at) == Some(&separator) {
        true => Some(at),
        false => find_after_quote(value, at, separator),
    }
}

/// As [`find_outside`], starting at a quote or a bracket.
fn find_after_quote(value: &[u8], from: usize, separator: u8) -> Option<usize> {
    let mut at = from;
    loop {
        match *value.get(at)? {
            b'"' => at += 2 + closing_quote(value.get(at + 1..)?)?,
            // Inside brackets only the closing bracket matters.
            b'<' => at += 2 + memchr(b'>', value.get(at + 1..)?)?,
            _ => return Some(at),
        }
        at += memchr3(separator, b'"', b'<', value.get(at..)?)?;
    }
}

/// The offset of the closing quote of a string whose opening quote precedes `inner`.
pub(super) fn closing_quote(inner: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        at += memchr2(b'"', b'\\', inner.get(at..)?)?;
        match inner.get(at) {
            Some(b'"') => return Some(at),
            _ => at += 2,
        }
    }
}

/// Strips white space and folds from both ends.
pub(super) fn trim(mut value: &[u8]) -> &[u8] {
    while let [first, rest @ ..] = value
        && is_lws(*first)
    {
        value = rest;
    }
    while let [rest @ .., last] = value
        && is_lws(*last)
    {
        value = rest;
    }
    value
}

/// The values of one header field.
#[derive(Clone, Debug)]
pub struct Values<'a> {
    rest: Option<&'a [u8]>,
    split: bool,
}

impl<'a> Values<'a> {
    /// The comma separated elements of `value`; empty ones are skipped.
    pub fn list(value: &'a [u8]) -> Values<'a> {
        Values {
            rest: Some(value),
            split: true,
        }
    }

    /// The one value, which may be empty.
    pub fn whole(value: &'a [u8]) -> Values<'a> {
        Values {
            rest: Some(value),
            split: false,
        }
    }
}

impl<'a> Iterator for Values<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if !self.split {
            return self.rest.take();
        }
        while let Some(rest) = self.rest {
            let element = match find_outside(rest, 0, b',') {
                Some(comma) => {
                    self.rest = rest.get(comma + 1..);
                    rest.get(..comma).unwrap_or_default()
                }
                None => {
                    self.rest = None;
                    rest
                }
            };
            let element = trim(element);
            if !element.is_empty() {
                return Some(element);
            }
        }
        None
    }
}

/// The rest of a list after its first `count` values; `None` if no value is left.
pub(super) fn skip_values(value: &[u8], count: usize) -> Option<&[u8]> {
    let mut values = Values::list(value);
    for _ in 0..count {
        values.next()?;
    }
    let rest = trim(values.rest?);
    let mut left = Values::list(rest);
    left.next().map(|_| rest)
}
