//! Injection files: lines of fields, as values for calls.

use super::program::{ScenarioAction, ScenarioProgram};
use super::xml::ScenarioError;
use engine::Entropy;
use std::collections::BTreeSet;
use std::ops::Range;

/// Most lines of a file that a template expands to.
const MAX_EXPANDED_LINES: u64 = 100_000_000;

/// Most bytes of a file, including lines that a run adds.
const MAX_BYTES: usize = 64 << 20;

/// Most lines that an index covers.
const MAX_INDEXED_LINES: u64 = 10_000_000;

/// Result of a change of a file in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineChange {
    /// The line is as given.
    Done,
    /// There is no such line, or the file is a template.
    NoLine,
    /// The memory for lines is used up: the file stays as it is.
    Full,
}

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
    /// Values of the indexed field with their lines.
    index: Option<BTreeSet<(Vec<u8>, u64)>>,
    indexed_by: Option<usize>,
    /// Bytes of lines that were replaced.
    unused: usize,
    /// A change was refused because the memory is used up.
    is_full: bool,
}

impl Injection {
    /// Reads a file.
    ///
    /// # Errors
    /// An unknown first line, or no line after it.
    pub fn read(name: &str, mut bytes: Vec<u8>) -> Result<Injection, ScenarioError> {
        // The byte order mark of spreadsheets.
        if bytes.starts_with(b"\xef\xbb\xbf") {
            bytes.drain(..3);
        }
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
        if printf.is_some() {
            for (number, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
                if line.first() != Some(&b'#') {
                    check_formats(line)
                        .map_err(|text| ScenarioError::new(number as u32 + 1, text))?;
                }
            }
        }
        Ok(Injection {
            name: name.to_owned(),
            order,
            bytes,
            lines,
            printf,
            index: None,
            indexed_by: None,
            unused: 0,
            is_full: false,
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

    /// A warning about the first line without a field, which is empty there as in SIPp; `None` if each line has it.
    pub fn missing_field(&self, field: usize) -> Option<String> {
        let mut lines = self.lines.iter().map(|range| {
            let line = self.bytes.get(range.start as usize..range.end as usize);
            line.unwrap_or_default()
        });
        let short = lines.find(|line| memchr::memchr_iter(b';', line).count() < field)?;
        let text: String = String::from_utf8_lossy(short).chars().take(40).collect();
        Some(format!(
            "{}: the line {text:?} has no field {field}: [field{field}] is empty there",
            self.name
        ))
    }

    /// Builds an index over one of the fields.
    ///
    /// # Errors
    /// The file has too many lines for an index.
    pub fn index_by(&mut self, field: usize) -> Result<(), String> {
        let lines = self.len();
        if lines > MAX_INDEXED_LINES {
            return Err(format!(
                "{}: an index has at most {MAX_INDEXED_LINES} lines, the file has {lines}",
                self.name
            ));
        }
        self.indexed_by = Some(field);
        let keys = (0..lines).filter_map(|line| Some((self.key_of(line)?, line)));
        self.index = Some(keys.collect());
        Ok(())
    }

    /// The indexed field of a line.
    fn key_of(&self, line: u64) -> Option<Vec<u8>> {
        let mut key = Vec::new();
        self.write_field(line, self.indexed_by?, &mut key)
            .then_some(key)
    }

    fn add_to_index(&mut self, line: u64) {
        if let Some(key) = self.key_of(line)
            && let Some(index) = &mut self.index
        {
            index.insert((key, line));
        }
    }

    /// Appends a line.
    pub fn insert(&mut self, line: &[u8]) -> LineChange {
        if self.printf.is_some() {
            return LineChange::NoLine;
        }
        let Some(range) = self.stored(line) else {
            return LineChange::Full;
        };
        self.lines.push(range);
        self.add_to_index(self.lines.len() as u64 - 1);
        LineChange::Done
    }

    /// Replaces a line.
    pub fn replace(&mut self, number: u64, line: &[u8]) -> LineChange {
        let place = usize::try_from(number).unwrap_or(usize::MAX);
        let Some(old) = self.lines.get(place).cloned() else {
            return LineChange::NoLine;
        };
        if self.printf.is_some() {
            return LineChange::NoLine;
        }
        let key = self.key_of(number);
        let length = old.len();
        // A shorter line takes the place of the old one, so that lines that are replaced for each call need no memory.
        let (range, unused) = match line.len() <= length {
            true => {
                let start = old.start as usize;
                let Some(room) = self.bytes.get_mut(start..start + line.len()) else {
                    return LineChange::NoLine;
                };
                room.copy_from_slice(line);
                let end = old.start + line.len() as u32;
                (old.start..end, length - line.len())
            }
            false => {
                let Some(range) = self.stored(line) else {
                    return LineChange::Full;
                };
                (range, length)
            }
        };
        self.unused += unused;
        if let Some(place) = self.lines.get_mut(place) {
            *place = range;
        }
        if let (Some(key), Some(index)) = (key, &mut self.index) {
            index.remove(&(key, number));
        }
        self.add_to_index(number);
        LineChange::Done
    }

    /// Appends the bytes of a line; `None` if the memory is used up.
    fn stored(&mut self, line: &[u8]) -> Option<Range<u32>> {
        if self.bytes.len() + line.len() > MAX_BYTES && self.unused > MAX_BYTES / 2 {
            self.compact();
        }
        if self.bytes.len() + line.len() > MAX_BYTES {
            return None;
        }
        let start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(line);
        Some(start..self.bytes.len() as u32)
    }

    /// Removes the bytes of replaced lines.
    fn compact(&mut self) {
        let mut bytes = Vec::with_capacity(self.bytes.len() - self.unused.min(self.bytes.len()));
        for range in &mut self.lines {
            let line = self.bytes.get(range.start as usize..range.end as usize);
            let start = bytes.len() as u32;
            bytes.extend_from_slice(line.unwrap_or_default());
            *range = start..bytes.len() as u32;
        }
        self.bytes = bytes;
        self.unused = 0;
    }

    /// The warning about the first refused change; `None` for further ones.
    pub fn full_warning(&mut self) -> Option<String> {
        let is_first = !std::mem::replace(&mut self.is_full, true);
        is_first.then(|| {
            format!(
                "{}: its lines use {} MiB, the most of a file in memory: insert and replace change no more lines",
                self.name,
                MAX_BYTES >> 20
            )
        })
    }

    /// Whether [`Injection::index_by`] was called.
    pub fn is_indexed(&self) -> bool {
        self.index.is_some()
    }

    /// The last line whose indexed field is `key`, as in SIPp.
    pub fn find(&self, key: &[u8]) -> Option<u64> {
        let last = (key.to_vec(), u64::MAX);
        let (found, line) = self.index.as_ref()?.range(..=last).next_back()?;
        (found == key).then_some(*line)
    }
}

/// Checks that the files fit the actions of a scenario and the number of users; returns warnings.
///
/// # Errors
/// An action cannot work with its file, or a user has no line. SIPp ends the run then.
pub fn check_use(
    files: &[Injection],
    program: &ScenarioProgram,
    users: u64,
) -> Result<Vec<String>, String> {
    let steps = program.steps.iter().chain(&program.init);
    for action in steps.flat_map(|step| &step.actions) {
        let (name, at) = match action {
            ScenarioAction::Lookup { file, .. } => ("lookup", *file),
            ScenarioAction::Insert { file, .. } => ("insert", *file),
            ScenarioAction::Replace { file, .. } => ("replace", *file),
            _ => continue,
        };
        let Some(file) = files.get(usize::from(at)) else {
            continue;
        };
        let of = &file.name;
        if name == "lookup" && !file.is_indexed() {
            return Err(format!(
                "<lookup> needs an index of {of}: name its field with --index {of}:FIELD (SIPp: -infindex {of} FIELD)"
            ));
        }
        if name != "lookup" && file.printf.is_some() {
            return Err(format!(
                "<{name}> is not possible in {of}: it is a template (PRINTF)"
            ));
        }
    }
    let mut warnings = Vec::new();
    for file in files.iter().filter(|file| file.order == LineOrder::User) {
        let (of, lines) = (&file.name, file.len());
        if users > lines {
            return Err(format!(
                "--users {users}: {of} has a line for each of {lines} users: add lines, or use fewer users"
            ));
        }
        if users == 0 {
            warnings.push(format!(
                "{of} has a line for each user, and there are no users (--users N): each call takes the next line"
            ));
        }
    }
    Ok(warnings)
}

fn read_head(head: &[u8]) -> Result<(LineOrder, Option<Printf>), String> {
    let text = String::from_utf8_lossy(head);
    let mut words = text.split(',').map(str::trim);
    // Spreadsheets write further separators after the word: `SEQUENTIAL;;`.
    let word = words.next().unwrap_or_default();
    let order = match word.trim_end_matches([';', ' ']) {
        "SEQUENTIAL" => LineOrder::Sequential,
        "RANDOM" => LineOrder::Random,
        "USER" | "USERS" => LineOrder::User,
        _ => {
            return Err(format!(
                "{word:?}: the first line must be SEQUENTIAL, RANDOM or USER"
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
            "PRINTF" if value == 0 => return Err("PRINTF needs at least one line".to_owned()),
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

/// Whether all that begins with `%` in a line can be expanded.
fn check_formats(line: &[u8]) -> Result<(), String> {
    let mut rest = line;
    while let Some(at) = memchr::memchr(b'%', rest) {
        let tail = rest.get(at + 1..).unwrap_or_default();
        let digits = tail.iter().take_while(|byte| byte.is_ascii_digit());
        let kind = digits.count();
        if !matches!(tail.get(kind), Some(b'd' | b'i' | b'u' | b'x' | b'%')) {
            let text: String = String::from_utf8_lossy(tail).chars().take(8).collect();
            return Err(format!(
                "\"%{text}\": a PRINTF file has %d, %5d, %05d, %x and %% only"
            ));
        }
        rest = tail.get(kind + 1..).unwrap_or_default();
    }
    Ok(())
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
        file.index_by(0).unwrap();
        assert_eq!((file.find(b"Fred"), file.find(b"Eve")), (Some(2), None));
        assert_eq!(file.insert(b"Eve;z"), LineChange::Done);
        assert_eq!(file.replace(1, b"Robert;b"), LineChange::Done);
        assert_eq!(file.replace(9, b""), LineChange::NoLine);
        assert_eq!((file.len(), file.find(b"Eve")), (4, Some(3)));
        assert_eq!((file.find(b"Bob"), file.find(b"Robert")), (None, Some(1)));
        assert_eq!(field(&file, 1, 1).unwrap(), "b");
    }

    #[test]
    fn formats_that_cannot_be_expanded_are_refused() {
        let read =
            |text: &str| Injection::read("a.csv", text.into()).map(|file| field(&file, 0, 0));
        let head = "SEQUENTIAL,PRINTF=3\n";
        let marked = read("\u{feff}SEQUENTIAL\na;%s\n").unwrap();
        assert_eq!(marked.unwrap(), "a");
        assert_eq!(read(&format!("{head}u%03d%%\n")).unwrap().unwrap(), "u000%");
        for wrong in ["u%s", "u%", "a;%-5d", "%3X"] {
            let error = read(&format!("{head}a\n{wrong}\n")).unwrap_err();
            assert_eq!(error.line, 3, "{wrong}");
        }
        assert!(read("SEQUENTIAL,PRINTF=0\na\n").is_err());
    }

    #[test]
    fn lines_that_are_replaced_for_each_call_need_no_more_memory() {
        let text = b"SEQUENTIAL\nAlice;0\nBob;0\nAlice;1\n".to_vec();
        let mut file = Injection::read("a.csv", text).unwrap();
        file.index_by(0).unwrap();
        for number in 0..2_000_000u64 {
            // Lines of two lengths, of which one does not fit into the place of the other.
            let line = format!("Bob;{number:0width$}", width = 60 + number as usize % 2);
            assert_eq!(file.replace(1, line.as_bytes()), LineChange::Done);
        }
        assert!(field(&file, 1, 1).unwrap().ends_with("01999999"));
        assert!(file.bytes.len() <= MAX_BYTES);
        assert_eq!((file.find(b"Bob"), file.find(b"Alice")), (Some(1), Some(2)));
        // The index has the line before of a key whose last one is replaced, and no other ones.
        assert_eq!(file.replace(2, b"Carol;2"), LineChange::Done);
        assert_eq!(
            (file.find(b"Alice"), file.find(b"Carol")),
            (Some(0), Some(2))
        );
        assert_eq!(file.index.as_ref().unwrap().len(), 3);
        // The other lines are as they were.
        assert_eq!(field(&file, 0, 1).unwrap(), "0");
    }

    #[test]
    fn used_up_memory_is_reported_once() {
        let mut file = Injection::read("a.csv", b"SEQUENTIAL\nAlice;0\n".to_vec()).unwrap();
        let long = vec![b'x'; 1 << 20];
        let done = (0..100).filter(|_| file.insert(&long) == LineChange::Done);
        assert_eq!(done.count(), (MAX_BYTES >> 20) - 1);
        assert_eq!(file.insert(&long), LineChange::Full);
        let warning = file.full_warning().unwrap();
        assert!(
            warning.starts_with("a.csv: its lines use 64 MiB"),
            "{warning}"
        );
        assert_eq!(file.full_warning(), None);
        let text = b"SEQUENTIAL,PRINTF=10000001\n%d;%d\n".to_vec();
        let mut file = Injection::read("b.csv", text).unwrap();
        let error = file.index_by(0).unwrap_err();
        assert!(error.contains("at most 10000000 lines"), "{error}");
        assert_eq!(file.insert(b"x"), LineChange::NoLine);
    }

    #[test]
    fn line_without_a_field_is_named() {
        let file = Injection::read("a.csv", b"SEQUENTIAL\njoe;1;\nsue;2\n".to_vec()).unwrap();
        assert_eq!(file.missing_field(1), None);
        let warning = file.missing_field(2).unwrap();
        assert!(warning.starts_with("a.csv: the line \"sue;2\" has no field 2"));
        // An empty field is one.
        assert!(file.missing_field(3).unwrap().contains("joe;1;"));
    }

    #[test]
    fn written_out_by_a_template() {
        let text = b"USERS,PRINTF=4\nuser%03d;Foo\nuser%03d;100%%\n".to_vec();
        let file = Injection::read("a.csv", text).unwrap();
        assert_eq!((file.len(), file.order()), (4, LineOrder::User));
        assert_eq!(field(&file, 2, 0).unwrap(), "user002");
        assert_eq!(field(&file, 2, 1).unwrap(), "Foo");
        assert_eq!(field(&file, 3, 0).unwrap(), "user003");
        assert_eq!(field(&file, 1, 1).unwrap(), "100%");
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
