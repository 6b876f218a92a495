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
    /// Length of national numbers without a prefix.
    pub(crate) national_digits: Option<usize>,
    pub(crate) international: String,
    pub(crate) prefix: String,
}

impl Renumber {
    /// The number in its new form. Text that is not a number (a name) is returned unchanged. `country` is the country
    /// code of national numbers that the address names.
    pub(crate) fn apply<'n>(&self, user: &'n str, country: Option<&str>) -> Cow<'n, str> {
        let plain = without_separators(user);
        if !is_number(&plain) {
            return Cow::Borrowed(user);
        }
        let rest = match plain.char_indices().nth(self.strip) {
            Some((at, _)) => plain.get(at..).unwrap_or_default(),
            None => "",
        };
        let formed = match self.form {
            Some(form) => self.formed(rest, form, country.unwrap_or(&self.country)),
            None => rest.to_owned(),
        };
        let whole = format!("{}{formed}", self.prefix);
        match whole.is_empty() || whole == user {
            true => Cow::Borrowed(user),
            false => Cow::Owned(whole),
        }
    }

    /// Country code and subscriber number without `+`; `None` for a short number, which has no known country.
    fn international<'n>(&self, number: &'n str, country: &str) -> Option<Cow<'n, str>> {
        if let Some(digits) = number.strip_prefix('+') {
            return Some(Cow::Borrowed(digits));
        }
        if let Some(digits) = strip_filled(number, &self.international) {
            return Some(Cow::Borrowed(digits));
        }
        let unprefixed = || {
            let is_national = self.national_digits == Some(number.len());
            (is_national && number.bytes().all(|byte| byte.is_ascii_digit())).then_some(number)
        };
        let digits = strip_filled(number, &self.national).or_else(unprefixed)?;
        Some(Cow::Owned(format!("{country}{digits}")))
    }

    /// The number in this form. Short numbers are unchanged.
    fn formed(&self, number: &str, form: NumberForm, country: &str) -> String {
        let Some(digits) = self.international(number, country) else {
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

/// The text behind a non-empty prefix, if there is any. Behind none begins a number with 0: no country code does
/// (ITU-T E.164), and no national number of a country with a trunk prefix. 000, an emergency number, is a short one.
fn strip_filled<'n>(number: &'n str, prefix: &str) -> Option<&'n str> {
    let rest = number.strip_prefix(prefix).filter(|_| !prefix.is_empty())?;
    (!rest.is_empty() && !rest.starts_with('0')).then_some(rest)
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
            national_digits: None,
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
            for (form, expected) in [
                (NumberForm::E164, e164),
                (NumberForm::Digits, digits),
                (NumberForm::National, national),
            ] {
                assert_eq!(germany(form).apply(number, None), expected, "{number}");
            }
        }
    }

    /// Poland has no trunk prefix.
    #[test]
    fn national_numbers_without_prefix_have_a_length() {
        let poland = |form| Renumber {
            country: "48".into(),
            national: String::new(),
            national_digits: Some(9),
            ..germany(form)
        };
        for (number, e164, national) in [
            ("221234567", "+48221234567", "221234567"),
            ("22 123-45-67", "+48221234567", "221234567"),
            ("0048221234567", "+48221234567", "221234567"),
            ("+48221234567", "+48221234567", "221234567"),
            ("48221234567", "48221234567", "48221234567"),
            ("0049301234567", "+49301234567", "0049301234567"),
            ("112", "112", "112"),
            ("22123456#", "22123456#", "22123456#"),
        ] {
            assert_eq!(
                poland(NumberForm::E164).apply(number, None),
                e164,
                "{number}"
            );
            let formed = poland(NumberForm::National).apply(number, None);
            assert_eq!(formed, national, "{number}");
        }
    }

    #[test]
    fn country_of_the_address_precedes_that_of_the_rule() {
        let rule = germany(NumberForm::E164);
        assert_eq!(rule.apply("01234", Some("43")), "+431234");
        assert_eq!(rule.apply("+491234", Some("43")), "+491234");
        let rule = germany(NumberForm::National);
        assert_eq!(rule.apply("01234", Some("43")), "00431234");
    }

    /// Australia, where the emergency number begins like national numbers.
    #[test]
    fn emergency_number_000_is_a_short_number() {
        let australia = Renumber {
            country: "61".into(),
            international: "0011".into(),
            ..germany(NumberForm::E164)
        };
        for (number, e164) in [
            ("000", "000"),
            ("0291234567", "+61291234567"),
            ("0011493012", "+493012"),
            ("112", "112"),
        ] {
            assert_eq!(australia.apply(number, None), e164);
        }
        assert_eq!(germany(NumberForm::Digits).apply("000", None), "000");
        assert_eq!(germany(NumberForm::National).apply("0001", None), "0001");
    }

    #[test]
    fn strip_and_prefix() {
        let rule = Renumber {
            strip: 1,
            prefix: "9".into(),
            form: None,
            ..germany(NumberForm::E164)
        };
        assert_eq!(rule.apply("0123", None), "9123");
        assert_eq!(rule.apply("bob", None), "bob");
        // North America: the prefix of national numbers is 1, which is the country code, too.
        let america = Renumber {
            country: "1".into(),
            national: "1".into(),
            international: "011".into(),
            ..germany(NumberForm::E164)
        };
        assert_eq!(america.apply("12125551234", None), "+12125551234");
        assert_eq!(america.apply("011498912", None), "+498912");
    }
}
