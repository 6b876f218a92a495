//! Errors of the TOML reader in words of the user.

/// The expected type in words instead of names of Rust.
fn in_words(expected: &str) -> &str {
    match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number from 0",
        "i8" | "i16" | "i32" | "i64" => "a whole number",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a string" => "text",
        "a sequence" => "a list",
        "a map" => "a table",
        other => other,
    }
}

/// An error of the TOML reader: for an unknown key or word, with the nearest valid name; for a value of another type,
/// with the expected one in words.
pub(super) fn with_remedy(message: &str) -> String {
    if let Some(wrong) = message
        .strip_prefix("invalid type: ")
        .or_else(|| message.strip_prefix("invalid value: "))
        && let Some((found, expected)) = wrong.rsplit_once(", expected ")
    {
        return format!(
            "{found} is not valid here: must be {}",
            in_words(expected.trim())
        );
    }
    let unknown = ["unknown field `", "unknown variant `"]
        .into_iter()
        .find_map(|start| message.strip_prefix(start))
        .and_then(|rest| rest.split_once('`'));
    let Some((word, known)) = unknown else {
        return message.to_owned();
    };
    // Valid names are in back quotes: every second piece.
    let known = known.split('`').skip(1).step_by(2);
    match config::did_you_mean(word, known) {
        Some(near) => format!("{message}; did you mean `{near}`?"),
        None => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{File, built_in};

    #[test]
    fn values_of_another_type_are_reported_in_words() {
        let text = built_in("small-network").unwrap();
        for (set, words) in [
            ("sut.call_limit_per_second=abc", "must be a whole number"),
            ("sut.call_limit_per_second=-1", "must be a whole number"),
            ("callers.rate=fast", "must be a number"),
        ] {
            let error = File::parse_with("x", text, &[set.to_owned()]).unwrap_err();
            let error = error.to_string();
            assert!(
                error.contains(words) && !error.contains("u32"),
                "{set}: {error}"
            );
        }
    }
}
