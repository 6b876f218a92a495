//! Values that we write.

use super::bencode::Item;
use std::collections::BTreeMap;
use std::io::Write as _;

/// A value of our own, written in canonical form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// An integer.
    Integer(i64),
    /// A byte string.
    Bytes(Vec<u8>),
    /// A list.
    List(Vec<Value>),
    /// A dictionary.
    Dictionary(BTreeMap<Vec<u8>, Value>),
}

impl Value {
    /// A dictionary with nothing in it.
    pub fn dictionary() -> Value {
        Value::Dictionary(BTreeMap::new())
    }

    /// A count; what exceeds the range of integers is its greatest.
    pub fn count(number: u64) -> Value {
        Value::Integer(i64::try_from(number).unwrap_or(i64::MAX))
    }

    /// With `value` under `key`, where it is a dictionary; anything else stays as it is.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Value {
        self.set(key, value);
        self
    }

    /// Puts `value` under `key`, where it is a dictionary.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) {
        if let Value::Dictionary(entries) = self {
            entries.insert(key.as_bytes().to_vec(), value.into());
        }
    }

    /// Appends it in bencode.
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            // Writing into a Vec cannot fail.
            Value::Integer(number) => {
                let _ = write!(out, "i{number}e");
            }
            Value::Bytes(bytes) => string(bytes, out),
            Value::List(items) => {
                out.push(b'l');
                for item in items {
                    item.write(out);
                }
                out.push(b'e');
            }
            Value::Dictionary(entries) => {
                out.push(b'd');
                for (key, value) in entries {
                    string(key, out);
                    value.write(out);
                }
                out.push(b'e');
            }
        }
    }
}

fn string(bytes: &[u8], out: &mut Vec<u8>) {
    let _ = write!(out, "{}:", bytes.len());
    out.extend_from_slice(bytes);
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Bytes(text.as_bytes().to_vec())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::Bytes(text.into_bytes())
    }
}

impl From<&[u8]> for Value {
    fn from(bytes: &[u8]) -> Value {
        Value::Bytes(bytes.to_vec())
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Value {
        Value::Integer(number)
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Value {
        Value::count(number)
    }
}

impl From<Vec<Value>> for Value {
    fn from(items: Vec<Value>) -> Value {
        Value::List(items)
    }
}

impl From<Item<'_>> for Value {
    fn from(item: Item<'_>) -> Value {
        match item {
            Item::Integer(number) => Value::Integer(number),
            Item::Bytes(bytes) => Value::Bytes(bytes.to_vec()),
            Item::List(list) => Value::List(list.iter().map(Value::from).collect()),
            Item::Dictionary(dictionary) => {
                let mut entries = BTreeMap::new();
                for (key, value) in dictionary.iter() {
                    entries.entry(key.to_vec()).or_insert_with(|| value.into());
                }
                Value::Dictionary(entries)
            }
        }
    }
}
