//! Values to write.

use super::bencode::BencodeItem;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Write as _;

/// A value to write in canonical form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    /// An empty dictionary.
    pub fn dictionary() -> Value {
        Value::Dictionary(BTreeMap::new())
    }

    /// A count; saturates at the greatest integer.
    pub fn count(number: u64) -> Value {
        Value::Integer(i64::try_from(number).unwrap_or(i64::MAX))
    }

    /// Sets `value` under `key` of a dictionary; other values stay unmodified.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Value {
        self.set(key, value);
        self
    }

    /// Sets `value` under `key` of a dictionary.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) {
        if let Value::Dictionary(entries) = self {
            entries.insert(key.as_bytes().to_vec(), value.into());
        }
    }

    /// Appends the value in bencode.
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

impl From<BencodeItem<'_>> for Value {
    fn from(item: BencodeItem<'_>) -> Value {
        match item {
            BencodeItem::Integer(number) => Value::Integer(number),
            BencodeItem::Bytes(bytes) => Value::Bytes(bytes.to_vec()),
            BencodeItem::List(list) => Value::List(list.iter().map(Value::from).collect()),
            BencodeItem::Dictionary(dictionary) => {
                let mut entries = BTreeMap::new();
                for (key, value) in dictionary.iter() {
                    entries.entry(key.to_vec()).or_insert_with(|| value.into());
                }
                Value::Dictionary(entries)
            }
        }
    }
}
