//! A TOML document as plain values with positions.

use core::ops::Range;
use toml_edit::{Item, TableLike, Value};

/// A value and the bytes of the text where it stands.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) span: Range<usize>,
    pub(super) kind: Kind,
}

/// What a value is.
#[derive(Clone, Debug)]
pub(super) enum Kind {
    Table(Vec<Entry>),
    Array(Vec<Node>),
    Text(String),
    Integer(i64),
    Float(f64),
    Boolean(bool),
    Date(String),
}

/// One key of a table.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) key_span: Range<usize>,
    pub(super) node: Node,
}

impl Node {
    /// The whole document.
    pub(super) fn document(table: &dyn TableLike, length: usize) -> Node {
        // What is missing at the top is missing at the file's beginning.
        Node::table(table, 0..length.min(1))
    }

    fn table(table: &dyn TableLike, span: Range<usize>) -> Node {
        let entries = table
            .iter()
            .map(|(name, item)| {
                let key_span = table
                    .key(name)
                    .and_then(|key| key.span())
                    .or_else(|| item.span())
                    .unwrap_or_else(|| span.clone());
                Entry {
                    key: name.to_owned(),
                    node: Node::item(item, key_span.clone()),
                    key_span,
                }
            })
            .collect();
        Node {
            span,
            kind: Kind::Table(entries),
        }
    }

    fn item(item: &Item, fallback: Range<usize>) -> Node {
        let span = item.span().unwrap_or_else(|| fallback.clone());
        match item {
            Item::Value(value) => Node::value(value, span),
            Item::Table(table) => Node::table(table, table.span().unwrap_or(fallback)),
            Item::ArrayOfTables(tables) => Node {
                kind: Kind::Array(
                    tables
                        .iter()
                        .map(|table| Node::table(table, table.span().unwrap_or(span.clone())))
                        .collect(),
                ),
                span,
            },
            Item::None => Node {
                span,
                kind: Kind::Table(Vec::new()),
            },
        }
    }

    fn value(value: &Value, fallback: Range<usize>) -> Node {
        let span = value.span().unwrap_or(fallback);
        let kind = match value {
            Value::String(text) => Kind::Text(text.value().clone()),
            Value::Integer(number) => Kind::Integer(*number.value()),
            Value::Float(number) => Kind::Float(*number.value()),
            Value::Boolean(truth) => Kind::Boolean(*truth.value()),
            Value::Datetime(date) => Kind::Date(date.value().to_string()),
            Value::Array(values) => Kind::Array(
                values
                    .iter()
                    .map(|value| Node::value(value, span.clone()))
                    .collect(),
            ),
            Value::InlineTable(table) => return Node::table(table, span),
        };
        Node { span, kind }
    }

    /// The key of a table.
    pub(super) fn get(&self, key: &str) -> Option<&Entry> {
        match &self.kind {
            Kind::Table(entries) => entries.iter().find(|entry| entry.key == key),
            _ => None,
        }
    }

    /// Where `path` (`trunk[1].target[0]`) stands; where a part of it is not written, what is there of it.
    pub(super) fn span_of(&self, path: &str) -> Range<usize> {
        let mut node = self;
        for part in path.split(['.', '[']).filter(|part| !part.is_empty()) {
            let next = match (&node.kind, part.strip_suffix(']')) {
                (Kind::Array(nodes), Some(index)) => {
                    index.parse().ok().and_then(|at: usize| nodes.get(at))
                }
                (Kind::Table(_), None) => node.get(part).map(|entry| &entry.node),
                _ => None,
            };
            match next {
                Some(next) => node = next,
                None => break,
            }
        }
        node.span.clone()
    }

    /// The same without the keys and values that stand exactly there.
    pub(super) fn without(&self, spans: &[Range<usize>]) -> Node {
        let kind = match &self.kind {
            Kind::Table(entries) => Kind::Table(
                entries
                    .iter()
                    .filter(|entry| {
                        let here = |span| spans.contains(span);
                        // A missing key has the span of its table.
                        let table = matches!(entry.node.kind, Kind::Table(_));
                        !here(&entry.key_span) && (table || !here(&entry.node.span))
                    })
                    .map(|entry| Entry {
                        key: entry.key.clone(),
                        key_span: entry.key_span.clone(),
                        node: entry.node.without(spans),
                    })
                    .collect(),
            ),
            Kind::Array(nodes) => Kind::Array(
                nodes
                    .iter()
                    .filter(|node| {
                        matches!(node.kind, Kind::Table(_)) || !spans.contains(&node.span)
                    })
                    .map(|node| node.without(spans))
                    .collect(),
            ),
            other => other.clone(),
        };
        Node {
            span: self.span.clone(),
            kind,
        }
    }

    /// Where the tables stand that `other`, which was made of this one by [`Node::without`], has fewer keys in.
    pub(super) fn changed_tables(&self, other: &Node) -> Vec<Range<usize>> {
        let mut changed = Vec::new();
        match (&self.kind, &other.kind) {
            (Kind::Table(before), Kind::Table(after)) => {
                if before.len() != after.len() {
                    changed.push(self.span.clone());
                }
                for entry in after {
                    if let Some(old) = self.get(&entry.key) {
                        changed.extend(old.node.changed_tables(&entry.node));
                    }
                }
            }
            (Kind::Array(before), Kind::Array(after)) if before.len() == after.len() => {
                let pairs = before.iter().zip(after);
                changed.extend(pairs.flat_map(|(before, after)| before.changed_tables(after)));
            }
            (Kind::Array(_), Kind::Array(_)) => changed.push(self.span.clone()),
            _ => {}
        }
        changed
    }

    /// The same as JSON, without positions.
    pub(super) fn to_json(&self) -> serde_json::Value {
        match &self.kind {
            Kind::Table(entries) => serde_json::Value::Object(
                entries
                    .iter()
                    .map(|entry| (entry.key.clone(), entry.node.to_json()))
                    .collect(),
            ),
            Kind::Array(nodes) => nodes.iter().map(Node::to_json).collect(),
            Kind::Text(text) | Kind::Date(text) => text.clone().into(),
            Kind::Integer(number) => (*number).into(),
            Kind::Float(number) => (*number).into(),
            Kind::Boolean(truth) => (*truth).into(),
        }
    }

    /// What it is, for people.
    pub(super) fn kind_name(&self) -> &'static str {
        match self.kind {
            Kind::Table(_) => "a table",
            Kind::Array(_) => "a list",
            Kind::Text(_) => "a text",
            Kind::Integer(_) => "a whole number",
            Kind::Float(_) => "a number with a fraction",
            Kind::Boolean(_) => "true or false",
            Kind::Date(_) => "a date",
        }
    }

    /// The type's name in JSON Schema.
    pub(super) fn schema_type(&self) -> &'static str {
        match self.kind {
            Kind::Table(_) => "object",
            Kind::Array(_) => "array",
            Kind::Text(_) => "string",
            Kind::Integer(_) => "integer",
            Kind::Float(_) => "number",
            Kind::Boolean(_) => "boolean",
            Kind::Date(_) => "date",
        }
    }
}
