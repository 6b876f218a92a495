//! Reading the XML of a scenario.
//!
//! SIPp reads its files with a parser of its own that takes what XML forbids: `<` and `&` in attribute values, `\"` for a quote,
//! `--` in comments, attributes without a space between them or twice in a tag. Such files are common, so this reader takes
//! them too. Bytes are taken one by one as characters and given back the same way, so a message leaves exactly as it is in the
//! file, whatever encoding the file declares.

use std::fmt;

/// Largest scenario file, bytes.
pub const LARGEST: usize = 4 << 20;
/// Nodes of one document, at most.
const NODES: u32 = 200_000;
/// Elements within each other, at most; SIPp's need four.
const DEPTH: usize = 16;

/// What is wrong with a file, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Line, from 1.
    pub line: u32,
    /// What is wrong.
    pub text: String,
}

impl Mistake {
    /// A mistake in `line`.
    pub fn new(line: u32, text: impl Into<String>) -> Mistake {
        Mistake {
            line,
            text: text.into(),
        }
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.line, self.text)
    }
}

/// An element. Text and attribute values hold one character for each byte of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Element {
    /// Its name.
    pub name: String,
    /// The line in which it begins.
    pub line: u32,
    /// Names and values, in order.
    pub attributes: Vec<(String, String)>,
    /// All text inside it, children's left out.
    pub text: String,
    /// The line in which the first text stands.
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
            // Written as a reference by number; the file itself has no such character.
            Err(_) => out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    out
}

/// Reads a document and gives its outermost element; text behind it is not read, as with SIPp.
///
/// # Errors
/// Where it is too large, or no XML even by SIPp's lenient rules.
pub fn read(file: &[u8]) -> Result<Element, Mistake> {
    if file.len() > LARGEST {
        let text = format!("larger than {LARGEST} bytes");
        return Err(Mistake::new(1, text));
    }
    let mut reader = Reader {
        rest: file.strip_prefix(b"\xef\xbb\xbf").unwrap_or(file),
        line: 1,
        nodes: 0,
    };
    reader.document()
}

/// Characters of which each stands for a byte.
fn characters(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(*byte)).collect()
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

/// Reads a file from its beginning to its end, elements by recursion, which [`DEPTH`] bounds.
struct Reader<'f> {
    rest: &'f [u8],
    line: u32,
    nodes: u32,
}

impl<'f> Reader<'f> {
    fn wrong<T>(&self, text: impl Into<String>) -> Result<T, Mistake> {
        Err(Mistake::new(self.line, format!("not XML: {}", text.into())))
    }

    /// The next `count` bytes.
    fn advance(&mut self, count: usize) -> &'f [u8] {
        let (head, rest) = self.rest.split_at(count.min(self.rest.len()));
        self.line += memchr::memchr_iter(b'\n', head).count() as u32;
        self.rest = rest;
        head
    }

    /// All bytes up to `close`, which is passed over.
    fn until(&mut self, close: &[u8], what: &str) -> Result<&'f [u8], Mistake> {
        let Some(end) = memchr::memmem::find(self.rest, close) else {
            return Err(Mistake::new(self.line, format!("{what} is not closed")));
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

    /// Passes over a comment, a processing instruction or a document type; whether there was one.
    fn passed_over(&mut self) -> Result<bool, Mistake> {
        if self.rest.starts_with(b"<!--") {
            self.until(b"-->", "a comment")?;
        } else if self.rest.starts_with(b"<?") {
            self.until(b"?>", "<?")?;
        } else if self.rest.starts_with(b"<!") && !self.rest.starts_with(b"<![CDATA[") {
            let line = self.line;
            if self.until(b">", "<!")?.contains(&b'[') {
                let text = "a document type with declarations inside is not supported";
                return Err(Mistake::new(line, text));
            }
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    fn document(&mut self) -> Result<Element, Mistake> {
        loop {
            self.space();
            if self.rest.is_empty() {
                return self.wrong("there is no element");
            }
            if self.passed_over()? {
                continue;
            }
            if self.rest.first() != Some(&b'<') {
                return self.wrong("text in front of the first element");
            }
            return self.element(DEPTH);
        }
    }

    fn element(&mut self, depth: usize) -> Result<Element, Mistake> {
        let line = self.line;
        self.nodes += 1;
        if depth == 0 {
            return Err(Mistake::new(line, "elements within elements, too deep"));
        }
        if self.nodes > NODES {
            return Err(Mistake::new(line, format!("more than {NODES} elements")));
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

    fn name(&mut self) -> Result<String, Mistake> {
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

    /// The attributes of a tag and its end; whether the element ends with it. Of two attributes with one name both are
    /// kept, in order: the first counts.
    fn attributes(&mut self, found: &mut Element) -> Result<bool, Mistake> {
        loop {
            self.space();
            match self.rest {
                [] => return Err(Mistake::new(found.line, "a tag is not closed")),
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

    /// A quoted value, in which `<` and `&` may stand for themselves and `\"` for a quote.
    fn value(&mut self, name: &str) -> Result<String, Mistake> {
        let begun = self.line;
        let quote = match self.rest.first() {
            Some(quote @ (b'"' | b'\'')) => *quote,
            _ => return self.wrong(format!("the value of {name} is not in quotes")),
        };
        self.advance(1);
        let mut value = String::new();
        loop {
            match *self.rest {
                [] => return Err(Mistake::new(begun, "an attribute's value is not closed")),
                [byte, ..] if byte == quote => {
                    self.advance(1);
                    return Ok(value);
                }
                [b'\\', b'\\', ..] => value.push_str(&characters(self.advance(2))),
                [b'\\', b'"', ..] if quote == b'"' => {
                    value.push('"');
                    self.advance(2);
                }
                [b'&', ..] => value.push(self.reference()),
                [_, ..] => value.push_str(&characters(self.advance(1))),
            }
        }
    }

    /// A reference's character; an ampersand that opens none is itself.
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

    /// All that stands between an element's tags.
    fn content(&mut self, found: &mut Element, depth: usize) -> Result<(), Mistake> {
        loop {
            if self.rest.is_empty() {
                return self.wrong(format!("<{}> is not closed", found.name));
            }
            if self.rest.starts_with(b"</") {
                self.advance(2);
                let name = self.name()?;
                if name != found.name {
                    let text = format!("</{name}> where </{}> is due", found.name);
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
            } else if self.passed_over()? {
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

/// The character of a reference by number.
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
    fn what_sipp_takes_is_taken() {
        let file = b"<?xml version=\"1.0\" encoding=\"ISO-8859-1\" ?>\n<!DOCTYPE scenario SYSTEM \"sipp.dtd\">\n\
            <!-- a -- b\n -->\n<scenario name=\"a & b\">\n<ereg regexp=\"<sip:\\\"(a\\\\)&lt;\"x='1'/>\n\
            <send><![CDATA[\n caf\xe9 <&>\n]]></send></scenario>";
        let read = read(file).unwrap();
        assert_eq!((read.name.as_str(), read.line), ("scenario", 5));
        assert_eq!(read.attributes, [("name".into(), "a & b".into())]);
        let ereg = &read.children[0];
        assert_eq!(ereg.line, 6);
        assert_eq!(
            ereg.attributes,
            [
                ("regexp".into(), "<sip:\"(a\\\\)<".into()),
                ("x".into(), "1".into())
            ]
        );
        assert_eq!(bytes(&read.children[1].text), b"\n caf\xe9 <&>\n");
        assert_eq!(read.children[1].line, 7);
    }

    #[test]
    fn what_is_no_xml_is_told_with_its_line() {
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
