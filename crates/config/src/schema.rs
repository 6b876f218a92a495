//! The JSON Schema of the configuration, validation of a document against it, and the reference page generated from it.

use super::document::{DocumentNode, DocumentValue};
use super::mistake::did_you_mean;
use super::raw::Raw;
use core::fmt::Write as _;
use core::ops::Range;
use serde_json::Value;

/// The JSON Schema (draft 2020-12) of the configuration, pretty-printed.
pub fn json_schema() -> String {
    serde_json::to_string_pretty(&schema()).unwrap_or_default()
}

pub(super) fn schema() -> Value {
    schemars::schema_for!(Raw).to_value()
}

/// A violation of the schema.
#[derive(Debug)]
pub(super) struct Violation {
    pub(super) span: Range<usize>,
    pub(super) message: String,
    pub(super) remedy: String,
    /// Whether a required key is missing.
    pub(super) missing: bool,
}

/// All violations of `schema` in `document`.
pub(super) fn violations(schema: &Value, document: &DocumentNode) -> Vec<Violation> {
    let mut validator = SchemaValidator {
        root: schema,
        found: Vec::new(),
    };
    validator.node(schema, document, "");
    validator.found
}

struct SchemaValidator<'s> {
    root: &'s Value,
    found: Vec<Violation>,
}

impl<'s> SchemaValidator<'s> {
    fn report(&mut self, span: &Range<usize>, message: String, remedy: String) {
        self.found.push(Violation {
            span: span.clone(),
            message,
            remedy,
            missing: false,
        });
    }

    /// `what` is the key in messages; empty at the top level.
    fn node(&mut self, schema: &'s Value, node: &DocumentNode, what: &str) {
        let schema = resolve(self.root, schema);
        if let Some(words) = words_of(schema) {
            return self.word(&words, node, what);
        }
        if let Some(choices) = alternatives(schema) {
            let fitting = choices
                .iter()
                .find(|choice| accepts(self.root, choice, node));
            return match fitting {
                Some(choice) => self.node(choice, node, what),
                None => self.wrong_type(schema, node, what),
            };
        }
        if !accepts(self.root, schema, node) {
            return self.wrong_type(schema, node, what);
        }
        match &node.value {
            DocumentValue::Table(_) => self.table(schema, node, what),
            DocumentValue::Array(nodes) => {
                self.length(schema, nodes.len(), "minItems", node, what);
                if let Some(items) = schema.get("items") {
                    for node in nodes {
                        self.node(items, node, what);
                    }
                }
            }
            DocumentValue::Integer(number) => self.number(schema, *number, node, what),
            DocumentValue::Text(text) => self.length(schema, text.len(), "minLength", node, what),
            _ => {}
        }
    }

    fn table(&mut self, schema: &'s Value, node: &DocumentNode, what: &str) {
        let DocumentValue::Table(entries) = &node.value else {
            return;
        };
        let place = if what.is_empty() {
            "the file".to_owned()
        } else {
            format!("`{what}`")
        };
        let properties = schema.get("properties").and_then(Value::as_object);
        for entry in entries {
            match properties.and_then(|properties| properties.get(&entry.key)) {
                Some(property) => self.node(property, &entry.node, &entry.key),
                None => {
                    let known = || properties.into_iter().flat_map(|p| p.keys());
                    let remedy = match did_you_mean(&entry.key, known().map(String::as_str)) {
                        Some(word) => format!("did you mean `{word}`?"),
                        None => format!(
                            "remove it; known here: {}",
                            known().map(String::as_str).collect::<Vec<_>>().join(", ")
                        ),
                    };
                    self.report(
                        &entry.key_span,
                        format!("unknown key `{}` in {place}", entry.key),
                        remedy,
                    );
                }
            }
        }
        for key in required(schema) {
            if node.get(key).is_none() {
                let text = properties
                    .and_then(|properties| properties.get(key))
                    .map(description)
                    .unwrap_or_default();
                self.report(
                    &node.span,
                    format!("`{key}` is missing in {place}"),
                    format!("add `{key}`: {text}"),
                );
                if let Some(last) = self.found.last_mut() {
                    last.missing = true;
                }
            }
        }
    }

    fn word(&mut self, words: &[&str], node: &DocumentNode, what: &str) {
        let DocumentValue::Text(text) = &node.value else {
            let remedy = format!("write one of {}", quoted(words));
            let message = format!("`{what}` must be a text, not {}", node.type_name());
            return self.report(&node.span, message, remedy);
        };
        if words.contains(&text.as_str()) {
            return;
        }
        let remedy = match did_you_mean(text, words.iter().copied()) {
            Some(word) => format!("did you mean \"{word}\"? Possible: {}", quoted(words)),
            None => format!("write one of {}", quoted(words)),
        };
        self.report(
            &node.span,
            format!("\"{text}\" is no value of `{what}`"),
            remedy,
        );
    }

    fn number(&mut self, schema: &Value, number: i64, node: &DocumentNode, what: &str) {
        let bound = |name: &str| schema.get(name).and_then(Value::as_f64);
        // The schema of the type has no maximum of its own.
        let of_type = || (schema.get("format")? == "uint32").then_some(f64::from(u32::MAX));
        let (low, high) = (bound("minimum"), bound("maximum").or_else(of_type));
        let low_enough = low.is_none_or(|low| number as f64 >= low);
        let high_enough = high.is_none_or(|high| number as f64 <= high);
        if low_enough && high_enough {
            return;
        }
        let span = match (low, high) {
            (Some(low), Some(high)) => format!("from {low} to {high}"),
            (Some(low), None) => format!("{low} or more"),
            (None, Some(high)) => format!("{high} or less"),
            (None, None) => return,
        };
        self.report(
            &node.span,
            format!("`{what}` is {number}, but must be {span}"),
            format!("write a whole number {span}"),
        );
    }

    fn length(
        &mut self,
        schema: &Value,
        length: usize,
        bound: &str,
        node: &DocumentNode,
        what: &str,
    ) {
        let least = schema.get(bound).and_then(Value::as_u64).unwrap_or(0);
        if (length as u64) < least {
            let message = match length {
                0 => format!("`{what}` is empty"),
                _ => format!("`{what}` is too short: it has {length}, and needs {least}"),
            };
            let remedy = format!("write at least {least}, or remove the key");
            self.report(&node.span, message, remedy);
        }
    }

    fn wrong_type(&mut self, schema: &Value, node: &DocumentNode, what: &str) {
        let wanted = type_names(self.root, schema).join(" or ");
        let remedy = match (&node.value, wanted.as_str()) {
            // The remedy is logged.
            (DocumentValue::Integer(_), "a text") if is_secret(what) => {
                format!("write the value of {what} in quotes")
            }
            (DocumentValue::Text(text), "a whole number") if text.parse::<i64>().is_ok() => {
                format!("write {what} = {text}, without quotes")
            }
            (DocumentValue::Integer(number), "a text") => format!("write {what} = \"{number}\""),
            (DocumentValue::Table(_), "a list of tables") => {
                format!("write [[{what}]] instead of [{what}]")
            }
            (DocumentValue::Array(_), "a table") => format!("write [{what}] instead of [[{what}]]"),
            _ => format!("write {wanted}: {}", description(schema)),
        };
        self.report(
            &node.span,
            format!("`{what}` must be {wanted}, not {}", node.type_name()),
            remedy,
        );
    }
}

/// Keys whose values are secrets, which are not logged.
const SECRETS: [&str; 4] = ["password", "ha1", "pin", "community"];

/// Whether a key has a secret as its value, also if `password` is misspelt.
pub fn is_secret(key: &str) -> bool {
    SECRETS.contains(&key) || did_you_mean(key, ["password"].into_iter()).is_some()
}

fn resolve<'s>(root: &'s Value, schema: &'s Value) -> &'s Value {
    let mut schema = schema;
    // schemars never nests references deeper.
    for _ in 0..4 {
        let Some(name) = schema
            .get("$ref")
            .and_then(Value::as_str)
            .and_then(|reference| reference.strip_prefix("#/$defs/"))
        else {
            break;
        };
        match root.get("$defs").and_then(|defs| defs.get(name)) {
            Some(target) => schema = target,
            None => break,
        }
    }
    schema
}

fn alternatives(schema: &Value) -> Option<&Vec<Value>> {
    schema
        .get("anyOf")
        .or_else(|| schema.get("oneOf"))
        .and_then(Value::as_array)
}

/// The words of an enumeration; `None` for other schemas.
fn words_of(schema: &Value) -> Option<Vec<&str>> {
    if let Some(words) = schema.get("enum").and_then(Value::as_array) {
        return words.iter().map(Value::as_str).collect();
    }
    let words: Option<Vec<Vec<&str>>> = schema
        .get("oneOf")
        .and_then(Value::as_array)?
        .iter()
        .map(|choice| match choice.get("const").and_then(Value::as_str) {
            Some(word) => Some(vec![word]),
            None => words_of(choice),
        })
        .collect();
    words
        .map(Vec::into_iter)
        .map(Iterator::flatten)
        .map(Iterator::collect)
}

fn types_of(schema: &Value) -> Vec<&str> {
    match schema.get("type") {
        Some(Value::String(name)) => vec![name],
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
        _ if words_of(schema).is_some() => vec!["string"],
        _ => Vec::new(),
    }
}

/// Whether the schema allows a value of this type.
fn accepts(root: &Value, schema: &Value, node: &DocumentNode) -> bool {
    let schema = resolve(root, schema);
    match (words_of(schema), alternatives(schema)) {
        (None, Some(choices)) => choices.iter().any(|choice| accepts(root, choice, node)),
        _ => types_of(schema).contains(&node.schema_type()),
    }
}

fn type_names(root: &Value, schema: &Value) -> Vec<String> {
    let schema = resolve(root, schema);
    if let (None, Some(choices)) = (words_of(schema), alternatives(schema)) {
        let mut names: Vec<String> = Vec::new();
        for name in choices.iter().flat_map(|choice| type_names(root, choice)) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        return names;
    }
    types_of(schema)
        .into_iter()
        .filter(|&name| name != "null")
        .map(|name| match name {
            "object" => "a table".to_owned(),
            "array" => {
                let tables = schema
                    .get("items")
                    .is_some_and(|items| types_of(resolve(root, items)) == ["object"]);
                if tables { "a list of tables" } else { "a list" }.to_owned()
            }
            "integer" => "a whole number".to_owned(),
            "number" => "a number".to_owned(),
            "boolean" => "true or false".to_owned(),
            _ => "a text".to_owned(),
        })
        .collect()
}

fn required(schema: &Value) -> impl Iterator<Item = &str> {
    schema
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
}

fn description(schema: &Value) -> String {
    schema
        .get("description")
        .and_then(Value::as_str)
        .map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "))
        .unwrap_or_default()
}

fn quoted(words: &[&str]) -> String {
    words
        .iter()
        .map(|word| format!("\"{word}\""))
        .collect::<Vec<_>>()
        .join(", ")
}

/// The reference page of the configuration.
pub fn markdown() -> String {
    let root = schema();
    let mut page = String::from(
        "# Configuration\n\nGenerated by `cargo xtask docs` from the types that read it (`crates/config`); `hornwork schema` prints\nthe same as JSON Schema. One TOML file; unknown keys are refused; `hornwork check` reports every mistake with line and\nremedy. \"or several\" means that a single value and a list are both accepted. A relative path of a file or folder starts at\nthe folder of the configuration file.\n",
    );
    section(&root, &root, "Top level", &mut page);
    let Some(properties) = root.get("properties").and_then(Value::as_object) else {
        return page;
    };
    for (key, property) in properties {
        let list = resolve(&root, property).get("items").is_some();
        let title = if list {
            format!("`[[{key}]]`")
        } else {
            format!("`[{key}]`")
        };
        subsections(&root, property, &title, &mut page);
    }
    page
}

/// Writes the tables of a property, and those nested in them.
fn subsections(root: &Value, property: &Value, title: &str, page: &mut String) {
    for table in tables_in(root, property) {
        section(root, table, title, page);
        let properties = table.get("properties").and_then(Value::as_object);
        for (key, inner) in properties.into_iter().flatten() {
            let name = title.trim_matches(['`', '[', ']']);
            subsections(root, inner, &format!("`{name}.{key}`"), page);
        }
    }
}

fn tables_in<'s>(root: &'s Value, schema: &'s Value) -> Vec<&'s Value> {
    let schema = resolve(root, schema);
    if schema.get("properties").is_some() {
        return vec![schema];
    }
    let mut tables: Vec<&Value> = Vec::new();
    let inner = alternatives(schema)
        .into_iter()
        .flatten()
        .chain(schema.get("items"));
    for table in inner.flat_map(|inner| tables_in(root, inner)) {
        if !tables.iter().any(|known| core::ptr::eq(*known, table)) {
            tables.push(table);
        }
    }
    tables
}

fn section(root: &Value, table: &Value, title: &str, page: &mut String) {
    let _ = write!(page, "\n## {title}\n{}\n\n", description(table));
    page.push_str("| key | value | default | meaning |\n| --- | --- | --- | --- |\n");
    let needed: Vec<&str> = required(table).collect();
    let properties = table.get("properties").and_then(Value::as_object);
    let mut more = String::new();
    for (key, property) in properties.into_iter().flatten() {
        let default = match property.get("default") {
            _ if needed.contains(&key.as_str()) => "required".to_owned(),
            Some(Value::Object(_) | Value::Null) | None => String::new(),
            Some(Value::String(text)) if text.is_empty() => String::new(),
            Some(value) => format!("`{value}`"),
        };
        let mut text = description(property);
        if text.is_empty() {
            text = description(resolve(root, property));
        }
        let (cell, rest) = cell_and_rest(&text);
        let cell = cell.trim_end();
        let _ = writeln!(
            page,
            "| `{key}` | {} | {default} | {} |",
            value_text(root, property),
            cell.replace('|', "\\|")
        );
        if !rest.is_empty() {
            let _ = writeln!(more, "- `{key}`: {rest}");
        }
    }
    if !more.is_empty() {
        let _ = write!(page, "\n{more}");
    }
}

/// Most words of a description that is in its cell as a whole: a table with longer ones cannot be read on a phone.
const CELL_WORDS: usize = 25;

/// A description as its cell of the table and its text below the table: the first sentence of a long one, and the rest.
fn cell_and_rest(text: &str) -> (&str, &str) {
    match first_sentence(text) {
        Some(end) if text.split(' ').count() > CELL_WORDS => text.split_at(end),
        _ => (text, ""),
    }
}

/// Length of the first sentence of a text that has further ones, with the blank behind it. Full stops in parentheses
/// and in code end no sentence.
fn first_sentence(text: &str) -> Option<usize> {
    let (mut depth, mut in_code) = (0i32, false);
    for (at, sign) in text.char_indices() {
        match sign {
            '`' => in_code = !in_code,
            '(' if !in_code => depth += 1,
            ')' if !in_code => depth -= 1,
            '.' if !in_code && depth == 0 => {
                let rest = text.get(at + 1..).unwrap_or_default();
                let next = rest.strip_prefix(' ').and_then(|rest| rest.chars().next());
                if next.is_some_and(|next| !next.is_lowercase()) {
                    return Some(at + 2);
                }
            }
            _ => {}
        }
    }
    None
}

/// The allowed values in a few words.
fn value_text(root: &Value, property: &Value) -> String {
    let schema = resolve(root, property);
    let mut choices: Vec<&Value> = vec![schema];
    if words_of(schema).is_none()
        && let Some(inner) = alternatives(schema)
    {
        choices = inner.iter().map(|choice| resolve(root, choice)).collect();
    }
    let null = |choice: &&Value| choice.get("type").and_then(Value::as_str) == Some("null");
    choices.retain(|choice| !null(choice));
    if let [choice] = choices.as_slice() {
        if let Some(words) = words_of(choice) {
            return words
                .iter()
                .map(|word| format!("`\"{word}\"`"))
                .collect::<Vec<_>>()
                .join(", ");
        }
        if choice.get("minimum").is_some() {
            let bound = |name: &str| choice.get(name).and_then(Value::as_f64);
            return match (bound("minimum"), bound("maximum")) {
                (Some(low), Some(high)) => format!("{low} to {high}"),
                (Some(low), None) => format!("number from {low}"),
                _ => "number".to_owned(),
            };
        }
    }
    let several = choices.iter().any(|choice| choice.get("items").is_some()) && choices.len() > 1;
    let mut names: Vec<String> = choices
        .iter()
        .filter(|choice| !several || choice.get("items").is_none())
        .flat_map(|choice| type_names(root, choice))
        .map(|name| name.trim_start_matches("a ").to_owned())
        .collect();
    names.dedup();
    let text = names.join(" or ");
    if several {
        format!("{text}, or several")
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::super::judge;

    /// The line and the message of the only mistake.
    fn mistake(more: &str) -> (usize, String) {
        let text = format!("[[interface]]\nname=\"a\"\nlisten=\"udp:192.0.2.1\"\n{more}");
        let mistakes = judge(&text, "f").mistakes;
        let [mistake] = mistakes.as_slice() else {
            panic!("{mistakes:?}");
        };
        (mistake.line, mistake.message.clone())
    }

    #[test]
    fn numbers_beyond_their_type_are_reported_at_their_key() {
        let trunk = "[[trunk]]\nname=\"t\"\ntarget=\"192.0.2.2\"\nmax_calls=5000000000\n";
        for (more, line, key) in [
            (trunk, 7, "`max_calls` is 5000000000"),
            ("[realm]\nsource_failures=4294967296\n", 5, "4294967295"),
            ("[limits]\ncalls=9000000000\n", 5, "`calls`"),
        ] {
            let (found, message) = mistake(more);
            assert_eq!(found, line, "{message}");
            assert!(message.contains(key), "{message}");
        }
        let most = "[realm]\nsource_failures=4294967295\n";
        let text = format!("[[interface]]\nname=\"a\"\nlisten=\"udp:192.0.2.1\"\n{most}");
        assert!(judge(&text, "f").mistakes.is_empty());
    }

    #[test]
    fn remedy_does_not_repeat_a_secret() {
        let text = "[[interface]]\nname=\"a\"\nlisten=\"udp:192.0.2.1\"\n[[user]]\nname=\"b\"\npassword=271828\n";
        let mistakes = judge(text, "f").mistakes;
        let shown = format!("{mistakes:?}");
        assert!(shown.contains("`password` must be a text"), "{shown}");
        assert!(!shown.contains("271828"), "{shown}");
    }

    #[test]
    fn short_text_is_not_called_empty() {
        let conference = "[[conference]]\nname=\"c\"\nnumber=\"800\"\n";
        let (_, message) = mistake(&format!("{conference}pin=\"123\"\n"));
        assert_eq!(message, "`pin` is too short: it has 3, and needs 4");
        let (_, message) = mistake(&format!("{conference}pin=\"\"\n"));
        assert_eq!(message, "`pin` is empty");
    }
}
