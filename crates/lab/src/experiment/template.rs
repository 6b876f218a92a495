//! Templates of numbers and names: `{number}` becomes the number of the attempt, `{number:4}` the same with at least
//! four digits, `{number/4+8000}` a quarter of it (whole) plus 8000, so that four in a row share a value, `{user}` the
//! user, `{open}` an opening brace.

/// Fills the placeholders of `template`. Unknown names in braces are left unchanged.
pub fn fill(template: &str, number: u64, user: &str) -> String {
    let mut out = String::with_capacity(template.len() + 8);
    let mut rest = template;
    while let Some(open) = rest.find('{') {
        let (before, from) = rest.split_at(open);
        out.push_str(before);
        let Some(close) = from.find('}') else {
            rest = from;
            break;
        };
        match place(&from[1..close], number, user) {
            Some(value) => out.push_str(&value),
            None => out.push_str(&from[..=close]),
        }
        rest = &from[close + 1..];
    }
    out.push_str(rest);
    out
}

/// The template of a constant text.
pub fn escape(text: &str) -> String {
    text.replace('{', "{open}")
}

fn place(name: &str, number: u64, user: &str) -> Option<String> {
    if name == "user" {
        return Some(user.to_owned());
    }
    if name == "open" {
        return Some("{".to_owned());
    }
    let (name, width) = name.split_once(':').unwrap_or((name, "0"));
    let width: usize = width.parse().ok().filter(|width| *width <= 20)?;
    let number = computed(name.strip_prefix("number")?, number)?;
    Some(format!("{number:0width$}"))
}

/// The number after a division and an addition: none, `/4`, `+8000`, `/4+8000`.
fn computed(how: &str, number: u64) -> Option<u64> {
    let (divided, added) = how.split_once('+').unwrap_or((how, "0"));
    let added: u64 = added.parse().ok()?;
    let divisor: u64 = match divided {
        "" => 1,
        divided => divided.strip_prefix('/')?.parse().ok()?,
    };
    number.checked_div(divisor)?.checked_add(added)
}

#[cfg(test)]
mod tests {
    use super::{escape, fill};

    #[test]
    fn escaped_text_is_constant() {
        for text in ["a{number}b", "{user}", "{", "}", "{{open}}", "{number:4"] {
            assert_eq!(fill(&escape(text), 7, "alice"), text);
        }
    }

    #[test]
    fn placeholders_are_filled_and_other_text_stays() {
        assert_eq!(fill("10{number:02}", 7, ""), "1007");
        assert_eq!(fill("secret-{user}", 7, "1007"), "secret-1007");
        assert_eq!(fill("{number}-{number:3}", 12, "u"), "12-012");
        assert_eq!(fill("{x} {number:99} {", 1, "u"), "{x} {number:99} {");
        assert_eq!(fill("5555", 1, "u"), "5555");
        let numbers = [0, 3, 4, 119].map(|number| fill("{number/4+8000}", number, ""));
        assert_eq!(numbers, ["8000", "8000", "8001", "8029"]);
        assert_eq!(fill("{number/10:3} {number+5}", 42, ""), "004 47");
        let odd = "{number/0} {number*2} {number+} {number/4/2} {numbers}";
        assert_eq!(fill(odd, 42, ""), odd);
    }
}
