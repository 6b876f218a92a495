//! A TOML document as plain values with positions.

use core::ops::Range;
use toml_edit::{Item, TableLike, Value};

/// A value and its bytes of the text.
#[derive(Clone, Debug)]
pub(super) struct DocumentNode {
    pub(super) span: Range<usize>,
    pub(super) value: DocumentValue,
}

/// The content of a value.
#[derive(Clone, Debug)]
pub(super) enum DocumentValue {
    Table(Vec<DocumentEntry>),
    Array(Vec<DocumentNode>),
    Text(String),
    Integer(i64),
    Float(f64),
    Boolean(bool),
    Date(String),
}

/// One key of a table.
#[derive(Clone, Debug)]
pub(super) struct DocumentEntry {
    pub(super) key: String,
    pub(super) key_span: Range<usize>,
    pub(super) node: DocumentNode,
}

impl DocumentNode {
    /// The whole document.
    pub(super) fn document(table: &dyn TableLike, length: usize) -> DocumentNode {
        // Keys missing at the top level are reported at the beginning of the file.
        DocumentNode::table(table, 0..length.min(1))
    }

    fn table(table: &dyn TableLike, span: Range<usize>) -> DocumentNode {
        let entries = table
            .iter()
            .map(|(name, item)| {
                let key_span = table
                    .key(name)
                    .and_then(|key| key.span())
                    .or_else(|| item.span())
                    .unwrap_or_else(|| span.clone());
                DocumentEntry {
                    key: name.to_owned(),
                    node: DocumentNode::item(item, key_span.clone()),
                    key_span,
                }
            })
            .collect();
        DocumentNode {
            span,
            value: DocumentValue::Table(entries),
        }
    }

    fn item(item: &Item, fallback: Range<usize>) -> DocumentNode {
        let span = item.span().unwrap_or_else(|| fallback.clone());
        match item {
            Item::Value(value) => DocumentNode::value(value, span),
            Item::Table(table) => DocumentNode::table(table, table.span().unwrap_or(fallback)),
            Item::ArrayOfTables(tables) => DocumentNode {
                value: DocumentValue::Array(
                    tables
                        .iter()
                        .map(|table| {
                            DocumentNode::table(table, table.span().unwrap_or(span.clone()))
                        })
                        .collect(),
                ),
                span,
            },
            Item::None => DocumentNode {
                span,
                value: DocumentValue::Table(Vec::new()),
            },
        }
    }

    fn value(value: &Value, fallback: Range<usize>) -> DocumentNode {
        let span = value.span().unwrap_or(fallback);
        let kind = match value {
            Value::String(text) => DocumentValue::Text(text.value().clone()),
            Value::Integer(number) => DocumentValue::Integer(*number.value()),
            Value::Float(number) => DocumentValue::Float(*number.value()),
            Value::Boolean(truth) => DocumentValue::Boolean(*truth.value()),
            Value::Datetime(date) => DocumentValue::Date(date.value().to_string()),
            Value::Array(values) => DocumentValue::Array(
                values
                    .iter()
                    .map(|value| DocumentNode::value(value, span.clone()))
                    .collect(),
            ),
            Value::InlineTable(table) => return DocumentNode::table(table, span),
        };
        DocumentNode { span, value: kind }
    }

    /// The entry of a key, if this is a table.
    pub(super) fn get(&self, key: &str) -> Option<&DocumentEntry> {
        match &self.value {
            DocumentValue::Table(entries) => entries.iter().find(|entry| entry.key == key),
            _ => None,
        }
    }

    /// The bytes at `path` (`trunk[1].target[0]`), or at its longest prefix that exists.
    pub(super) fn span_of(&self, path: &str) -> Range<usize> {
        let mut node = self;
        for part in path.split(['.', '[']).filter(|part| !part.is_empty()) {
            let next = match (&node.value, part.strip_suffix(']')) {
                (DocumentValue::Array(nodes), Some(index)) => {
                    index.parse().ok().and_then(|at: usize| nodes.get(at))
                }
                (DocumentValue::Table(_), None) => node.get(part).map(|entry| &entry.node),
                _ => None,
            };
            match next {
                Some(next) => node = next,
                None => break,
            }
        }
        node.span.clone()
    }

    /// A copy without the keys and values at exactly these positions.
    pub(super) fn without(&self, spans: &[Range<usize>]) -> DocumentNode {
        let kind = match &self.value {
            DocumentValue::Table(entries) => DocumentValue::Table(
                entries
                    .iter()
                    .filter(|entry| {
                        let here = |span| spans.contains(span);
                        // A missing key has the span of its table.
                        let table = matches!(entry.node.value, DocumentValue::Table(_));
                        !here(&entry.key_span) && (table || !here(&entry.node.span))
                    })
                    .map(|entry| DocumentEntry {
                        key: entry.key.clone(),
                        key_span: entry.key_span.clone(),
                        node: entry.node.without(spans),
                    })
                    .collect(),
            ),
            DocumentValue::Array(nodes) => DocumentValue::Array(
                nodes
                    .iter()
                    .filter(|node| {
                        matches!(node.value, DocumentValue::Table(_)) || !spans.contains(&node.span)
                    })
                    .map(|node| node.without(spans))
                    .collect(),
            ),
            other => other.clone(),
        };
        DocumentNode {
            span: self.span.clone(),
            value: kind,
        }
    }

    /// The positions of tables with fewer keys in `other`, a copy made by [`DocumentNode::without`].
    pub(super) fn changed_tables(&self, other: &DocumentNode) -> Vec<Range<usize>> {
        let mut changed = Vec::new();
        match (&self.value, &other.value) {
            (DocumentValue::Table(before), DocumentValue::Table(after)) => {
                if before.len() != after.len() {
                    changed.push(self.span.clone());
                }
                for entry in after {
                    if let Some(old) = self.get(&entry.key) {
                        changed.extend(old.node.changed_tables(&entry.node));
                    }
                }
            }
            (DocumentValue::Array(before), DocumentValue::Array(after))
                if before.len() == after.len() =>
            {
                let pairs = before.iter().zip(after);
                changed.extend(pairs.flat_map(|(before, after)| before.changed_tables(after)));
            }
            (DocumentValue::Array(_), DocumentValue::Array(_)) => changed.push(self.span.clone()),
            _ => {}
        }
        changed
    }

    /// The value as JSON, without positions.
    pub(super) fn to_json(&self) -> serde_json::Value {
        match &self.value {
            DocumentValue::Table(entries) => serde_json::Value::Object(
                entries
                    .iter()
                    .map(|entry| (entry.key.clone(), entry.node.to_json()))
                    .collect(),
            ),
            DocumentValue::Array(nodes) => nodes.iter().map(DocumentNode::to_json).collect(),
            DocumentValue::Text(text) | DocumentValue::Date(text) => text.clone().into(),
            DocumentValue::Integer(number) => (*number).into(),
            DocumentValue::Float(number) => (*number).into(),
            DocumentValue::Boolean(truth) => (*truth).into(),
        }
    }

    /// The type in messages.
    pub(super) fn type_name(&self) -> &'static str {
        match self.value {
            DocumentValue::Table(_) => "a table",
            DocumentValue::Array(_) => "a list",
            DocumentValue::Text(_) => "a text",
            DocumentValue::Integer(_) => "a whole number",
            DocumentValue::Float(_) => "a number with a fraction",
            DocumentValue::Boolean(_) => "true or false",
            DocumentValue::Date(_) => "a date",
        }
    }

    /// The type in JSON Schema.
    pub(super) fn schema_type(&self) -> &'static str {
        match self.value {
            DocumentValue::Table(_) => "object",
            DocumentValue::Array(_) => "array",
            DocumentValue::Text(_) => "string",
            DocumentValue::Integer(_) => "integer",
            DocumentValue::Float(_) => "number",
            DocumentValue::Boolean(_) => "boolean",
            DocumentValue::Date(_) => "date",
        }
    }
}
