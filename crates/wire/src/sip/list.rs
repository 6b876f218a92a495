//! Splitting header values: at commas and semicolons, not those inside quotes or angle brackets.

use super::message::is_lws;

/// Where `separator` next stands in `value` at or behind `from`, outside quoted strings and `<>`. Linear.
pub(super) fn find_outside(value: &[u8], from: usize, separator: u8) -> Option<usize> {
    let mut quoted = false;
    let mut bracketed = false;
    let mut escaped = false;
    for (at, byte) in value.iter().enumerate().skip(from) {
        if quoted {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => quoted = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' if !bracketed => quoted = true,
            b'<' => bracketed = true,
            b'>' => bracketed = false,
            _ if *byte == separator && !bracketed => return Some(at),
            _ => {}
        }
    }
    None
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
    /// The comma separated elements of `value`; empty ones are left out.
    pub fn list(value: &'a [u8]) -> Values<'a> {
        Values {
            rest: Some(value),
            split: true,
        }
    }

    /// The one value, also where it is empty.
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

/// What remains of a list behind its first `count` values; `None` where no value is left.
pub(super) fn skip_values(value: &[u8], count: usize) -> Option<&[u8]> {
    let mut values = Values::list(value);
    for _ in 0..count {
        values.next()?;
    }
    let rest = trim(values.rest?);
    let mut left = Values::list(rest);
    left.next().map(|_| rest)
}
