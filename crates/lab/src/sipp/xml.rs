//! Reader for the XML of a scenario.
//!
//! SIPp's own parser accepts input that XML forbids: `<` and `&` in attribute values, `\"` for a quote, `--` in
//! comments, attributes without a space between them or twice in a tag. Such files are common, so this reader accepts
//! them too. Each byte is kept as one character and written back unchanged, so a message leaves exactly as in the file,
//! independent of the declared encoding.

use std::fmt;

/// Largest scenario file, bytes.
pub const MAX_FILE_BYTES: usize = 4 << 20;
/// Most nodes of one document.
const MAX_NODES: u32 = 200_000;
/// Deepest nesting of elements; SIPp's need four.
const MAX_DEPTH: usize = 16;

/// An error in a file, with its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScenarioError {
    /// Line, from 1.
    pub line: u32,
    /// Description.
    pub text: String,
}

impl ScenarioError {
    /// An error in `line`.
    pub fn new(line: u32, text: impl Into<String>) -> ScenarioError {
        ScenarioError {
            line,
            text: text.into(),
        }
    }
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.line, self.text)
    }
}

/// An element. Text and attribute values hold one character for each byte of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Element {
    /// Its name.
    pub name: String,
    /// The line of its start.
    pub line: u32,
    /// Names and values, in order.
    pub attributes: Vec<(String, String)>,
    /// All text inside it, without that of children.
    pub text: String,
    /// The line of the first text.
    pub text_line: u32,
    /// Elements inside it.
    pub children: Vec<Element>,
}

/// The bytes of a text that was read from a file.
pub fn bytes(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    for character in text.chars() {
        match u8::try_from(u32::from(character)) {
            Ok(byte) => out.push(byte),
            // Written as a numeric reference; the file itself has no such character.
            Err(_) => out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    out
}

/// Reads a document and returns its outermost element; text after it is not read, as in SIPp.
///
/// # Errors
/// The file is too large, or not XML even by SIPp's lenient rules.
pub fn read(file: &[u8]) -> Result<Element, ScenarioError> {
    if file.len() > MAX_FILE_BYTES {
        let text = format!("larger than {MAX_FILE_BYTES} bytes");
        return Err(ScenarioError::new(1, text));
    }
    let mut reader = XmlReader {
        rest: file.strip_prefix(b"\xef\xbb\xbf").unwrap_or(file),
        line: 1,
        nodes: 0,
    };
    reader.document()
}

/// Characters, each of which represents a byte.
fn characters(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(*byte)).collect()
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

/// Reads a file from beginning to end, elements by recursion, which [`MAX_DEPTH`] bounds.
struct XmlReader<'f> {
    rest: &'f [u8],
    line: u32,
    nodes: u32,
}

impl<'f> XmlReader<'f> {
    fn wrong<T>(&self, text: impl Into<String>) -> Result<T, ScenarioError> {
        Err(ScenarioError::new(
            self.line,
            format!("not XML: {}", text.into()),
        ))
    }

    /// Consumes the next `count` bytes.
    fn advance(&mut self, count: usize) -> &'f [u8] {
        let (head, rest) = self.rest.split_at(count.min(self.rest.len()));
        self.line += memchr::memchr_iter(b'\n', head).count() as u32;
        self.rest = rest;
        head
    }

    /// Consumes all bytes up to and including `close`.
    fn until(&mut self, close: &[u8], construct: &str) -> Result<&'f [u8], ScenarioError> {
        let Some(end) = memchr::memmem::find(self.rest, close) else {
            return Err(ScenarioError::new(
                self.line,
                format!("{construct} is not closed"),
            ));
        };
        let head = self.advance(end);
        self.advance(close.len());
        Ok(head)
    }

    fn space(&mut self) {
        let count = self.rest.iter().take_while(|byte| is_space(**byte));
        let count = count.count();
        self.advance(count);
    }

    /// Skips a comment, a processing instruction or a document type; returns whether there was one.
    fn skip_markup(&mut self) -> Result<bool, ScenarioError> {
        if self.rest.starts_with(b"<!--") {
            self.until(b"-->", "a comment")?;
        } else if self.rest.starts_with(b"<?") {
            self.until(b"?>", "<?")?;
        } else if self.rest.starts_with(b"<!") && !self.rest.starts_with(b"<![CDATA[") {
            let line = self.line;
            if self.until(b">", "<!")?.contains(&b'[') {
                let text = "a document type with declarations inside is not supported";
                return Err(ScenarioError::new(line, text));
            }
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    fn document(&mut self) -> Result<Element, ScenarioError> {
        loop {
            self.space();
            if self.rest.is_empty() {
                return self.wrong("no element found");
            }
            if self.skip_markup()? {
                continue;
            }
            if self.rest.first() != Some(&b'<') {
                return self.wrong("text before the first element");
            }
            return self.element(MAX_DEPTH);
        }
    }

    fn element(&mut self, depth: usize) -> Result<Element, ScenarioError> {
        let line = self.line;
        self.nodes += 1;
        if depth == 0 {
            return Err(ScenarioError::new(line, "elements nested too deeply"));
        }
        if self.nodes > MAX_NODES {
            return Err(ScenarioError::new(
                line,
                format!("more than {MAX_NODES} elements"),
            ));
        }
        self.advance(1);
        let mut found = Element {
            name: self.name()?,
            line,
            text_line: line,
            ..Element::default()
        };
        if !self.attributes(&mut found)? {
            self.content(&mut found, depth)?;
        }
        Ok(found)
    }

    fn name(&mut self) -> Result<String, ScenarioError> {
        let end = self
            .rest
            .iter()
            .position(|byte| is_space(*byte) || matches!(byte, b'=' | b'>' | b'/' | b'<' | b'"'))
            .unwrap_or(self.rest.len());
        match end {
            0 => self.wrong("a name is missing"),
            end => Ok(characters(self.advance(end))),
        }
    }

    /// The attributes of a tag and its end; returns whether the element ends with it. Of two attributes with one name
    /// both are kept, in order: the first counts.
    fn attributes(&mut self, found: &mut Element) -> Result<bool, ScenarioError> {
        loop {
            self.space();
            match self.rest {
                [] => return Err(ScenarioError::new(found.line, "a tag is not closed")),
                [b'>', ..] => {
                    self.advance(1);
                    return Ok(false);
                }
                [b'/', b'>', ..] => {
                    self.advance(2);
                    return Ok(true);
                }
                _ => {
                    let name = self.name()?;
                    self.space();
                    if self.rest.first() != Some(&b'=') {
                        return self.wrong(format!("the attribute {name} has no value"));
                    }
                    self.advance(1);
                    self.space();
                    let value = self.value(&name)?;
                    found.attributes.push((name, value));
                }
            }
        }
    }

    /// A quoted value; `<` and `&` may be literal, `\"` is a quote, and `\\`, `\n`, `\r`, `\t` are the characters of C.
    fn value(&mut self, name: &str) -> Result<String, ScenarioError> {
        let start_line = self.line;
        let quote = match self.rest.first() {
            Some(quote @ (b'"' | b'\'')) => *quote,
            _ => return self.wrong(format!("the value of {name} is not in quotes")),
        };
        self.advance(1);
        let mut value = String::new();
        loop {
            match *self.rest {
                [] => {
                    return Err(ScenarioError::new(
                        start_line,
                        "an attribute's value is not closed",
                    ));
                }
                [byte, ..] if byte == quote => {
                    self.advance(1);
                    return Ok(value);
                }
                [b'\\', b'"', ..] if quote == b'"' => {
                    value.push('"');
                    self.advance(2);
                }
                [b'\\', escaped @ (b'\\' | b'n' | b'r' | b't'), ..] => {
                    value.push(match escaped {
                        b'n' => '\n',
                        b'r' => '\r',
                        b't' => '\t',
                        _ => '\\',
                    });
                    self.advance(2);
                }
                [b'&', ..] => value.push(self.reference()),
                [_, ..] => value.push_str(&characters(self.advance(1))),
            }
        }
    }

    /// The character of a reference; an ampersand without one is literal.
    fn reference(&mut self) -> char {
        let end = self.rest.iter().take(12).position(|byte| *byte == b';');
        let name = end
            .and_then(|end| self.rest.get(1..end))
            .unwrap_or_default();
        let character = match name {
            b"lt" => Some('<'),
            b"gt" => Some('>'),
            b"amp" => Some('&'),
            b"quot" => Some('"'),
            b"apos" => Some('\''),
            name => name.strip_prefix(b"#").and_then(numbered_character),
        };
        self.advance(character.map_or(1, |_| name.len() + 2));
        character.unwrap_or('&')
    }

    /// Reads the content of an element.
    fn content(&mut self, found: &mut Element, depth: usize) -> Result<(), ScenarioError> {
        loop {
            if self.rest.is_empty() {
                return self.wrong(format!("<{}> is not closed", found.name));
            }
            if self.rest.starts_with(b"</") {
                self.advance(2);
                let name = self.name()?;
                if name != found.name {
                    let text = format!("</{name}> in place of </{}>", found.name);
                    return self.wrong(text);
                }
                self.until(b">", "a tag")?;
                return Ok(());
            }
            if self.rest.starts_with(b"<![CDATA[") {
                let line = self.line;
                self.advance(9);
                let text = self.until(b"]]>", "<![CDATA[")?;
                add_text(found, line, &characters(text));
            } else if self.skip_markup()? {
            } else if self.rest.first() == Some(&b'<') {
                let child = self.element(depth - 1)?;
                found.children.push(child);
            } else {
                let line = self.line;
                let text = self.text();
                add_text(found, line, &text);
            }
        }
    }

    /// Text up to the next tag.
    fn text(&mut self) -> String {
        let mut text = String::new();
        while let Some(byte) = self.rest.first() {
            match byte {
                b'<' => break,
                b'&' => text.push(self.reference()),
                _ => {
                    let end = memchr::memchr2(b'<', b'&', self.rest).unwrap_or(self.rest.len());
                    text.push_str(&characters(self.advance(end)));
                }
            }
        }
        text
    }
}

fn add_text(found: &mut Element, line: u32, text: &str) {
    if found.text.is_empty() {
        found.text_line = line;
    }
    found.text.push_str(text);
}

/// The character of a numeric reference.
fn numbered_character(text: &[u8]) -> Option<char> {
    let (digits, radix) = match text {
        [b'x', digits @ ..] => (digits, 16),
        digits => (digits, 10),
    };
    let digits = std::str::from_utf8(digits).ok()?;
    char::from_u32(u32::from_str_radix(digits, radix).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lenient_xml_is_accepted_as_by_sipp() {
        let file = b"<?xml version=\"1.0\" encoding=\"ISO-8859-1\" ?>\n<!DOCTYPE scenario SYSTEM \"sipp.dtd\">\n\
            <!-- a -- b\n -->\n<scenario name=\"a & b\">\n<ereg regexp=\"<sip:\\\"(a\\\\)&lt;\"x='1' y=\"\\n\\r\\t\\.\\x41\"/>\n\
            <send><![CDATA[\n caf\xe9 <&>\n]]></send></scenario>";
        let read = read(file).unwrap();
        assert_eq!((read.name.as_str(), read.line), ("scenario", 5));
        assert_eq!(read.attributes, [("name".into(), "a & b".into())]);
        let ereg = &read.children[0];
        assert_eq!(ereg.line, 6);
        assert_eq!(
            ereg.attributes,
            [
                ("regexp".into(), "<sip:\"(a\\)<".into()),
                ("x".into(), "1".into()),
                ("y".into(), "\n\r\t\\.\\x41".into())
            ]
        );
        assert_eq!(bytes(&read.children[1].text), b"\n caf\xe9 <&>\n");
        assert_eq!(read.children[1].line, 7);
    }

    #[test]
    fn invalid_xml_is_reported_with_its_line() {
        for (file, line) in [
            (&b"<scenario>\n<send>\n</scenario>"[..], 3),
            (b"<a>\n<!-- ", 2),
            (b"\n\n<a x=\"", 3),
            (b"<!DOCTYPE a [<!ENTITY b \"c\">]>\n<a/>", 1),
            (b"", 1),
        ] {
            assert_eq!(read(file).unwrap_err().line, line, "{file:?}");
        }
        let deep = "<a>".repeat(40) + &"</a>".repeat(40);
        assert!(read(deep.as_bytes()).is_err());
    }
}
