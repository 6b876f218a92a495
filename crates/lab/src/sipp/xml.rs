//! Reading the XML of a scenario.
//!
//! SIPp reads its files with a parser of its own that takes what XML forbids: `<` and `&` in attribute values, `\"` for a quote,
//! `--` in comments, attributes without a space between them. Such files are common, so they are put into order first, line by
//! line as they stand; then a real XML parser reads them. Bytes are taken one by one as characters and given back the same
//! way, so a message leaves exactly as it is in the file, whatever encoding the file declares.

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

/// Reads a document and gives its outermost element.
///
/// # Errors
/// Where it is too large, or no XML even after it was put into order.
pub fn read(file: &[u8]) -> Result<Element, Mistake> {
    if file.len() > LARGEST {
        let text = format!("larger than {LARGEST} bytes");
        return Err(Mistake::new(1, text));
    }
    let mut text = tidy(file.strip_prefix(b"\xef\xbb\xbf").unwrap_or(file))?;
    // What stands behind the scenario is not read by SIPp.
    const END: &str = "</scenario>";
    if let Some(at) = text.rfind(END) {
        text.truncate(at + END.len());
    }
    let options = roxmltree::ParsingOptions {
        nodes_limit: NODES,
        ..roxmltree::ParsingOptions::default()
    };
    let document = roxmltree::Document::parse_with_options(&text, options)
        .map_err(|error| Mistake::new(error.pos().row, format!("not XML: {error}")))?;
    let lines = Lines::of(&text);
    element(document.root_element(), &lines, DEPTH)
}

/// Where lines begin: the parser's own search begins at the front for each node.
struct Lines(Vec<usize>);

impl Lines {
    fn of(text: &str) -> Lines {
        let ends = memchr::memchr_iter(b'\n', text.as_bytes()).map(|at| at + 1);
        Lines(std::iter::once(0).chain(ends).collect())
    }

    fn at(&self, offset: usize) -> u32 {
        self.0.partition_point(|start| *start <= offset) as u32
    }
}

fn element(node: roxmltree::Node<'_, '_>, lines: &Lines, depth: usize) -> Result<Element, Mistake> {
    let line = lines.at(node.range().start);
    if depth == 0 {
        return Err(Mistake::new(line, "elements within elements, too deep"));
    }
    let mut found = Element {
        name: node.tag_name().name().to_owned(),
        line,
        attributes: node
            .attributes()
            .map(|attribute| (attribute.name().to_owned(), attribute.value().to_owned()))
            .collect(),
        text_line: line,
        ..Element::default()
    };
    for child in node.children() {
        if child.is_element() {
            found.children.push(element(child, lines, depth - 1)?);
        } else if let Some(text) = child.text() {
            if found.text.is_empty() {
                found.text_line = lines.at(child.range().start);
            }
            found.text.push_str(text);
        }
    }
    Ok(found)
}

/// Puts a file into order: what SIPp takes and XML does not.
struct Tidy<'f> {
    rest: &'f [u8],
    line: u32,
    out: String,
}

fn tidy(file: &[u8]) -> Result<String, Mistake> {
    let mut tidy = Tidy {
        rest: file,
        line: 1,
        out: String::with_capacity(file.len() + file.len() / 8),
    };
    while let Some(&byte) = tidy.rest.first() {
        match byte {
            b'<' => tidy.markup()?,
            b'&' => tidy.ampersand(),
            _ => tidy.copy(1),
        }
    }
    Ok(tidy.out)
}

impl Tidy<'_> {
    fn copy(&mut self, count: usize) {
        let (head, rest) = self.rest.split_at(count.min(self.rest.len()));
        self.line += memchr::memchr_iter(b'\n', head).count() as u32;
        self.out.extend(head.iter().map(|byte| char::from(*byte)));
        self.rest = rest;
    }

    /// Leaves out `count` bytes; their line ends stay.
    fn skip(&mut self, count: usize) {
        let (head, rest) = self.rest.split_at(count.min(self.rest.len()));
        let ends = memchr::memchr_iter(b'\n', head).count();
        self.line += ends as u32;
        self.out.extend(std::iter::repeat_n('\n', ends));
        self.rest = rest;
    }

    /// How far it is to the end of `close`.
    fn to(&self, close: &[u8], what: &str) -> Result<usize, Mistake> {
        memchr::memmem::find(self.rest, close)
            .map(|at| at + close.len())
            .ok_or_else(|| Mistake::new(self.line, format!("{what} is not closed")))
    }

    fn markup(&mut self) -> Result<(), Mistake> {
        if self.rest.starts_with(b"<!--") {
            let length = self.to(b"-->", "a comment")?;
            self.skip(length);
        } else if self.rest.starts_with(b"<![CDATA[") {
            let length = self.to(b"]]>", "<![CDATA[")?;
            self.copy(length);
        } else if self.rest.starts_with(b"<?") {
            let length = self.to(b"?>", "<?")?;
            self.skip(length);
        } else if self.rest.starts_with(b"<!") {
            let length = self.to(b">", "<!")?;
            if self.rest.iter().take(length).any(|byte| *byte == b'[') {
                let text = "a document type with declarations inside is not supported";
                return Err(Mistake::new(self.line, text));
            }
            self.skip(length);
        } else {
            self.tag()?;
        }
        Ok(())
    }

    fn tag(&mut self) -> Result<(), Mistake> {
        let begun = self.line;
        self.copy(1);
        loop {
            match self.rest.first() {
                None => return Err(Mistake::new(begun, "a tag is not closed")),
                Some(b'>') => {
                    self.copy(1);
                    return Ok(());
                }
                Some(&quote @ (b'"' | b'\'')) => {
                    self.value(quote)?;
                    if !matches!(
                        self.rest.first(),
                        None | Some(b'>' | b'/' | b' ' | b'\t' | b'\r' | b'\n')
                    ) {
                        self.out.push(' ');
                    }
                }
                Some(_) => self.copy(1),
            }
        }
    }

    /// A quoted attribute value.
    fn value(&mut self, quote: u8) -> Result<(), Mistake> {
        let begun = self.line;
        self.copy(1);
        loop {
            match *self.rest {
                [] => {
                    return Err(Mistake::new(begun, "an attribute's value is not closed"));
                }
                [byte, ..] if byte == quote => {
                    self.copy(1);
                    return Ok(());
                }
                [b'\\', b'\\', ..] => self.copy(2),
                [b'\\', b'"', ..] if quote == b'"' => {
                    self.out.push_str("&quot;");
                    self.skip(2);
                }
                [b'<', ..] => {
                    self.out.push_str("&lt;");
                    self.skip(1);
                }
                [b'&', ..] => self.ampersand(),
                [_, ..] => self.copy(1),
            }
        }
    }

    /// An ampersand: of a reference as it is, any other as itself.
    fn ampersand(&mut self) {
        let end = self.rest.iter().take(12).position(|byte| *byte == b';');
        let name = end
            .and_then(|end| self.rest.get(1..end))
            .unwrap_or_default();
        let known = matches!(name, b"lt" | b"gt" | b"amp" | b"quot" | b"apos")
            || name.strip_prefix(b"#").is_some_and(is_number);
        if known {
            self.copy(1);
        } else {
            self.out.push_str("&amp;");
            self.skip(1);
        }
    }
}

fn is_number(text: &[u8]) -> bool {
    let (digits, radix) = match text {
        [b'x', digits @ ..] => (digits, 16),
        digits => (digits, 10),
    };
    let number = std::str::from_utf8(digits)
        .ok()
        .and_then(|digits| u32::from_str_radix(digits, radix).ok());
    // What XML allows as a character.
    matches!(
        number,
        Some(9 | 10 | 13 | 32..=0xd7ff | 0xe000..=0xfffd | 0x1_0000..=0x10_ffff)
    )
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
