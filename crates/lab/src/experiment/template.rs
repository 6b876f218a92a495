//! Templates of numbers and names: `{number}` becomes the number of the attempt, `{number:4}` the same with at least four
//! digits, `{user}` the user.

/// Fills the places of `template`. What is in braces and not known stays as it is.
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

fn place(name: &str, number: u64, user: &str) -> Option<String> {
    match name.split_once(':') {
        None if name == "number" => Some(number.to_string()),
        None if name == "user" => Some(user.to_owned()),
        Some(("number", width)) => {
            let width: usize = width.parse().ok().filter(|width| *width <= 20)?;
            Some(format!("{number:0width$}"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::fill;

    #[test]
    fn places_are_filled_and_the_rest_stays() {
        assert_eq!(fill("10{number:02}", 7, ""), "1007");
        assert_eq!(fill("secret-{user}", 7, "1007"), "secret-1007");
        assert_eq!(fill("{number}-{number:3}", 12, "u"), "12-012");
        assert_eq!(fill("{x} {number:99} {", 1, "u"), "{x} {number:99} {");
        assert_eq!(fill("5555", 1, "u"), "5555");
    }
}
