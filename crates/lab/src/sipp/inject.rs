//! Injection files: lines of fields, as values for calls.

use super::xml::ScenarioError;
use engine::Entropy;
use std::collections::BTreeMap;
use std::ops::Range;

/// Most lines of a file that a template expands to.
const MAX_EXPANDED_LINES: u64 = 100_000_000;

/// Most bytes of a file, including lines that a run adds.
const MAX_BYTES: usize = 64 << 20;

/// Selection of the line for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineOrder {
    /// The next line; the first after the last.
    Sequential,
    /// A random line.
    Random,
    /// The line of the call's user.
    User,
}

/// Expansion of a template file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Printf {
    lines: u64,
    multiple: u64,
    offset: u64,
}

/// An injection file.
#[derive(Clone, Debug)]
pub struct Injection {
    /// Its name in scenarios: the last part of its path.
    pub name: String,
    order: LineOrder,
    bytes: Vec<u8>,
    lines: Vec<Range<u32>>,
    printf: Option<Printf>,
    index: Option<BTreeMap<Vec<u8>, u64>>,
    indexed_by: Option<usize>,
}

impl Injection {
    /// Reads a file.
    ///
    /// # Errors
    /// An unknown first line, or no line after it.
    pub fn read(name: &str, bytes: Vec<u8>) -> Result<Injection, ScenarioError> {
        let mut lines = Vec::new();
        let mut head: Option<(u32, Vec<u8>)> = None;
        let mut start = 0;
        for (number, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
            let range = start..start + line.strip_suffix(b"\r").unwrap_or(line).len();
            start += line.len() + 1;
            if range.is_empty() || line.first() == Some(&b'#') {
                continue;
            }
            match head {
                None => head = Some((number as u32 + 1, line.trim_ascii().to_vec())),
                Some(_) => lines.push(range.start as u32..range.end as u32),
            }
        }
        let Some((line, head)) = head else {
            return Err(ScenarioError::new(1, "the file is empty"));
        };
        let (order, printf) = read_head(&head).map_err(|text| ScenarioError::new(line, text))?;
        if lines.is_empty() {
            return Err(ScenarioError::new(line, "no line of values"));
        }
        Ok(Injection {
            name: name.to_owned(),
            order,
            bytes,
            lines,
            printf,
            index: None,
            indexed_by: None,
        })
    }

    /// Number of lines.
    pub fn len(&self) -> u64 {
        self.printf
            .map_or(self.lines.len() as u64, |printf| printf.lines)
    }

    /// Always false: a file without lines is rejected.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Selection of the line for a call.
    pub fn order(&self) -> LineOrder {
        self.order
    }

    /// The line for call `number` (from 0), of user `user` (from 0).
    pub fn choose(&self, number: u64, user: Option<u64>, entropy: &mut Entropy) -> u64 {
        match self.order {
            LineOrder::Sequential => number % self.len(),
            LineOrder::Random => entropy.below(self.len()),
            LineOrder::User => user.unwrap_or(number) % self.len(),
        }
    }

    fn template(&self, line: u64) -> &[u8] {
        let index = (line % self.lines.len() as u64) as usize;
        self.lines
            .get(index)
            .and_then(|range| self.bytes.get(range.start as usize..range.end as usize))
            .unwrap_or_default()
    }

    /// Appends a field of a line; returns whether it exists.
    pub fn write_field(&self, line: u64, field: usize, out: &mut Vec<u8>) -> bool {
        let Some(text) = self.template(line).split(|byte| *byte == b';').nth(field) else {
            return false;
        };
        match self.printf {
            None => out.extend_from_slice(text),
            Some(printf) => {
                let number = line
                    .wrapping_mul(printf.multiple)
                    .wrapping_add(printf.offset);
                expand(text, number, out);
            }
        }
        true
    }

    /// Builds an index over one of the fields.
    pub fn index_by(&mut self, field: usize) {
        let mut index = BTreeMap::new();
        let mut key = Vec::new();
        for line in 0..self.len() {
            key.clear();
            if self.write_field(line, field, &mut key) {
                index.entry(key.clone()).or_insert(line);
            }
        }
        self.index = Some(index);
        self.indexed_by = Some(field);
    }

    /// Appends a line.
    pub fn insert(&mut self, line: Vec<u8>) {
        self.added(line, None);
    }

    /// Replaces a line; returns whether it exists.
    pub fn replace(&mut self, number: u64, line: Vec<u8>) -> bool {
        let exists = self.printf.is_none() && number < self.lines.len() as u64;
        if exists {
            self.added(line, Some(number as usize));
        }
        exists
    }

    fn added(&mut self, line: Vec<u8>, place: Option<usize>) {
        // A template file has no lines of its own; and lines added by a run are bounded.
        if self.printf.is_some() || self.bytes.len() + line.len() > MAX_BYTES {
            return;
        }
        let start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(&line);
        let range = start..self.bytes.len() as u32;
        match place.and_then(|place| self.lines.get_mut(place)) {
            Some(old) => *old = range,
            None => self.lines.push(range),
        }
        if let Some(field) = self.indexed_by {
            self.index_by(field);
        }
    }

    /// Whether [`Injection::index_by`] was called.
    pub fn is_indexed(&self) -> bool {
        self.index.is_some()
    }

    /// The first line whose indexed field is `key`.
    pub fn find(&self, key: &[u8]) -> Option<u64> {
        self.index.as_ref()?.get(key).copied()
    }
}

fn read_head(head: &[u8]) -> Result<(LineOrder, Option<Printf>), String> {
    let text = String::from_utf8_lossy(head);
    let mut words = text.split(',').map(str::trim);
    let order = match words.next().unwrap_or_default() {
        "SEQUENTIAL" => LineOrder::Sequential,
        "RANDOM" => LineOrder::Random,
        "USER" | "USERS" => LineOrder::User,
        other => {
            return Err(format!(
                "{other:?}: the first line must be SEQUENTIAL, RANDOM or USER"
            ));
        }
    };
    let mut printf = Printf {
        lines: 0,
        multiple: 1,
        offset: 0,
    };
    for word in words {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        let value: u64 = value
            .trim()
            .parse()
            .map_err(|_| format!("{word:?} needs a number"))?;
        match name.trim() {
            "PRINTF" => printf.lines = value,
            "PRINTFMULTIPLE" => printf.multiple = value,
            "PRINTFOFFSET" => printf.offset = value,
            other => return Err(format!("{other:?} in the first line is not supported")),
        }
    }
    if printf.lines > MAX_EXPANDED_LINES {
        return Err(format!("PRINTF: at most {MAX_EXPANDED_LINES} lines"));
    }
    Ok((order, (printf.lines > 0).then_some(printf)))
}

/// Expands `%d`, `%5d`, `%05d`, `%x` and `%%` of a template.
fn expand(template: &[u8], number: u64, out: &mut Vec<u8>) {
    let mut rest = template;
    while let Some(at) = memchr::memchr(b'%', rest) {
        let (text, tail) = rest.split_at(at);
        out.extend_from_slice(text);
        let digits = tail
            .iter()
            .skip(1)
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        let format = tail.get(1..1 + digits).unwrap_or_default();
        let width = std::str::from_utf8(format)
            .ok()
            .and_then(|text| text.parse::<usize>().ok())
            .unwrap_or(0)
            .min(64);
        let zeros = format.first() == Some(&b'0');
        let written = match tail.get(1 + digits) {
            Some(b'd' | b'i' | b'u') if zeros => format!("{number:0width$}"),
            Some(b'd' | b'i' | b'u') => format!("{number:width$}"),
            Some(b'x') if zeros => format!("{number:0width$x}"),
            Some(b'x') => format!("{number:width$x}"),
            Some(b'%') => "%".to_owned(),
            _ => {
                out.push(b'%');
                rest = tail.get(1..).unwrap_or_default();
                continue;
            }
        };
        out.extend_from_slice(written.as_bytes());
        rest = tail.get(digits + 2..).unwrap_or_default();
    }
    out.extend_from_slice(rest);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(file: &Injection, line: u64, field: usize) -> Option<String> {
        let mut out = Vec::new();
        file.write_field(line, field, &mut out)
            .then(|| String::from_utf8(out).unwrap())
    }

    #[test]
    fn injection_lines_and_comments() {
        let text = b"SEQUENTIAL\n#no\nSarah;sipphone32\r\nBob;\n\nFred;x;y".to_vec();
        let mut file = Injection::read("a.csv", text).unwrap();
        assert_eq!(file.len(), 3);
        assert_eq!(field(&file, 0, 1).unwrap(), "sipphone32");
        assert_eq!(field(&file, 1, 1).unwrap(), "");
        assert_eq!(
            (field(&file, 2, 2).unwrap().as_str(), field(&file, 0, 2)),
            ("y", None)
        );
        let mut entropy = Entropy::from_number(1);
        assert_eq!(file.choose(4, None, &mut entropy), 1);
        file.index_by(0);
        assert_eq!((file.find(b"Fred"), file.find(b"Eve")), (Some(2), None));
        file.insert(b"Eve;z".to_vec());
        assert!(file.replace(1, b"Robert;b".to_vec()) && !file.replace(9, Vec::new()));
        assert_eq!((file.len(), file.find(b"Eve")), (4, Some(3)));
        assert_eq!((file.find(b"Bob"), file.find(b"Robert")), (None, Some(1)));
        assert_eq!(field(&file, 1, 1).unwrap(), "b");
    }

    #[test]
    fn written_out_by_a_template() {
        let text = b"USERS,PRINTF=4\nuser%03d;Foo\nuser%03d;100%%;%\n".to_vec();
        let file = Injection::read("a.csv", text).unwrap();
        assert_eq!((file.len(), file.order()), (4, LineOrder::User));
        assert_eq!(field(&file, 2, 0).unwrap(), "user002");
        assert_eq!(field(&file, 2, 1).unwrap(), "Foo");
        assert_eq!(field(&file, 3, 0).unwrap(), "user003");
        assert_eq!(field(&file, 1, 1).unwrap(), "100%");
        assert_eq!(field(&file, 1, 2).unwrap(), "%");
        let text = b"SEQUENTIAL,PRINTF=10,PRINTFMULTIPLE=2,PRINTFOFFSET=10\n%d;%4d;%x\n".to_vec();
        let file = Injection::read("a.csv", text).unwrap();
        assert_eq!(field(&file, 9, 0).unwrap(), "28");
        assert_eq!(field(&file, 0, 1).unwrap(), "  10");
        assert_eq!(field(&file, 0, 2).unwrap(), "a");
        let mut entropy = Entropy::from_number(1);
        assert_eq!(file.choose(25, Some(3), &mut entropy), 5);
    }

    #[test]
    fn errors_name_their_line() {
        for text in [
            "",
            "Sarah;a\n",
            "SEQUENTIAL\n#x\n",
            "USER,PRINTF=x\na",
            "RANDOM,SPEED=1\na",
        ] {
            assert!(Injection::read("a", text.into()).is_err(), "{text:?}");
        }
    }
}
