//! Conversion of telephone numbers between their forms.

use crate::spec::NumberForm;
use std::borrow::Cow;

/// Changes of a number, in this order: strip, form, prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Renumber {
    pub(crate) strip: usize,
    pub(crate) form: Option<NumberForm>,
    pub(crate) country: String,
    pub(crate) national: String,
    pub(crate) international: String,
    pub(crate) prefix: String,
}

impl Renumber {
    /// The number in its new form. Text that is not a number (a name) is returned unchanged.
    pub(crate) fn apply<'n>(&self, user: &'n str) -> Cow<'n, str> {
        let plain = without_separators(user);
        if !is_number(&plain) {
            return Cow::Borrowed(user);
        }
        let rest = match plain.char_indices().nth(self.strip) {
            Some((at, _)) => plain.get(at..).unwrap_or_default(),
            None => "",
        };
        let formed = match self.form {
            Some(form) => self.formed(rest, form),
            None => rest.to_owned(),
        };
        let whole = format!("{}{formed}", self.prefix);
        match whole.is_empty() || whole == user {
            true => Cow::Borrowed(user),
            false => Cow::Owned(whole),
        }
    }

    /// Country code and subscriber number without `+`; `None` for a short number, which has no known country.
    fn international<'n>(&self, number: &'n str) -> Option<Cow<'n, str>> {
        if let Some(digits) = number.strip_prefix('+') {
            return Some(Cow::Borrowed(digits));
        }
        if let Some(digits) = strip_filled(number, &self.international) {
            return Some(Cow::Borrowed(digits));
        }
        let digits = strip_filled(number, &self.national)?;
        Some(Cow::Owned(format!("{}{digits}", self.country)))
    }

    /// The number in this form. Short numbers are unchanged.
    fn formed(&self, number: &str, form: NumberForm) -> String {
        let Some(digits) = self.international(number) else {
            return number.to_owned();
        };
        match form {
            NumberForm::E164 => format!("+{digits}"),
            NumberForm::Digits => digits.into_owned(),
            NumberForm::National => match digits.strip_prefix(&self.country) {
                Some(own) if !self.country.is_empty() => format!("{}{own}", self.national),
                _ => format!("{}{digits}", self.international),
            },
        }
    }
}

/// The text behind a non-empty prefix, if there is any.
fn strip_filled<'n>(number: &'n str, prefix: &str) -> Option<&'n str> {
    match prefix.is_empty() {
        true => None,
        false => number.strip_prefix(prefix).filter(|rest| !rest.is_empty()),
    }
}

/// Removes visual separators (RFC 3966).
fn without_separators(user: &str) -> Cow<'_, str> {
    match user.contains(['-', '.', '(', ')', ' ']) {
        true => Cow::Owned(user.replace(['-', '.', '(', ')', ' '], "")),
        false => Cow::Borrowed(user),
    }
}

fn is_number(text: &str) -> bool {
    let digits = text.strip_prefix('+').unwrap_or(text);
    !digits.is_empty()
        && digits
            .bytes()
            .all(|byte| byte.is_ascii_digit() || byte == b'*' || byte == b'#')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn germany(form: NumberForm) -> Renumber {
        Renumber {
            strip: 0,
            form: Some(form),
            country: "49".into(),
            national: "0".into(),
            international: "00".into(),
            prefix: String::new(),
        }
    }

    #[test]
    fn national_and_international() {
        for (number, e164, digits, national) in [
            ("030123", "+4930123", "4930123", "030123"),
            ("004930123", "+4930123", "4930123", "030123"),
            ("+4930123", "+4930123", "4930123", "030123"),
            ("+49 (30) 12-3", "+4930123", "4930123", "030123"),
            ("0043123", "+43123", "43123", "0043123"),
            ("+43123", "+43123", "43123", "0043123"),
            ("110", "110", "110", "110"),
            ("alice", "alice", "alice", "alice"),
            ("", "", "", ""),
            ("0", "0", "0", "0"),
        ] {
            assert_eq!(germany(NumberForm::E164).apply(number), e164, "{number}");
            assert_eq!(
                germany(NumberForm::Digits).apply(number),
                digits,
                "{number}"
            );
            assert_eq!(
                germany(NumberForm::National).apply(number),
                national,
                "{number}"
            );
        }
    }

    #[test]
    fn strip_and_prefix() {
        let rule = Renumber {
            strip: 1,
            prefix: "9".into(),
            form: None,
            ..germany(NumberForm::E164)
        };
        assert_eq!(rule.apply("0123"), "9123");
        assert_eq!(rule.apply("bob"), "bob");
        // North America: the prefix of national numbers is 1, which is the country code, too.
        let america = Renumber {
            country: "1".into(),
            national: "1".into(),
            international: "011".into(),
            ..germany(NumberForm::E164)
        };
        assert_eq!(america.apply("12125551234"), "+12125551234");
        assert_eq!(america.apply("011498912"), "+498912");
    }
}
