//! The actions of a scenario, compiled.

use super::compile::{Attributes, Compiler, distribution, list};
use super::ere;
use super::media::Packing;
use super::program::{Action, Compare, Line, Media, Operand, Operation, Where};
use super::template::Text;
use super::xml::{Element, Mistake, bytes};

/// The octets of SIPp's patterns.
const PATTERNS: [u8; 6] = [0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff];
/// Files of media that a scenario plays, at most.
const FILES: usize = 1_000;

/// Compiles one action.
pub(super) fn compile(compiler: &mut Compiler<'_>, element: &Element) -> Result<Action, Mistake> {
    let mut attributes = Attributes::of(element);
    let action = match element.name.as_str() {
        "ereg" => ereg(compiler, &mut attributes)?,
        "log" => Action::Log(text(compiler, &mut attributes, "message")?),
        "warning" => Action::Warning(text(compiler, &mut attributes, "message")?),
        "error" => Action::Error(text(compiler, &mut attributes, "message")?),
        "assignstr" => Action::AssignText(
            variable(compiler, &mut attributes, "assign_to")?,
            text(compiler, &mut attributes, "value")?,
        ),
        "assign" => compute(compiler, &mut attributes, Operation::Assign)?,
        "add" => compute(compiler, &mut attributes, Operation::Add)?,
        "subtract" => compute(compiler, &mut attributes, Operation::Subtract)?,
        "multiply" => compute(compiler, &mut attributes, Operation::Multiply)?,
        "divide" => compute(compiler, &mut attributes, Operation::Divide)?,
        "sample" => Action::Sample(
            variable(compiler, &mut attributes, "assign_to")?,
            distribution(&mut attributes)?,
        ),
        "todouble" => Action::ToNumber {
            to: variable(compiler, &mut attributes, "assign_to")?,
            from: variable(compiler, &mut attributes, "variable")?,
        },
        "test" => test(compiler, &mut attributes)?,
        "strcmp" => compare_texts(compiler, &mut attributes)?,
        "trim" => Action::Trim(variable(compiler, &mut attributes, "assign_to")?),
        "gettimeofday" => clock(compiler, &mut attributes)?,
        "jump" => Action::Jump(operand(compiler, &mut attributes)?),
        "setdest" => Action::Redirect {
            host: text(compiler, &mut attributes, "host")?,
            port: text(compiler, &mut attributes, "port")?,
            protocol: text(compiler, &mut attributes, "protocol")?,
        },
        "verifyauth" => Action::Verify {
            to: variable(compiler, &mut attributes, "assign_to")?,
            username: text(compiler, &mut attributes, "username")?,
            password: text(compiler, &mut attributes, "password")?,
        },
        "lookup" => lookup(compiler, &mut attributes)?,
        "insert" => Action::Insert {
            file: injection(compiler, &mut attributes)?,
            value: text(compiler, &mut attributes, "value")?,
        },
        "replace" => Action::Replace {
            file: injection(compiler, &mut attributes)?,
            line: text(compiler, &mut attributes, "line")?,
            value: text(compiler, &mut attributes, "value")?,
        },
        "urldecode" | "urlencode" => Action::Url {
            variable: variable(compiler, &mut attributes, "variable")?,
            encode: element.name == "urlencode",
        },
        "index" => Action::StepIndex(variable(compiler, &mut attributes, "assign_to")?),
        "pauserestore" => Action::RestorePause(operand(compiler, &mut attributes)?),
        "closecon" => Action::CloseConnection,
        "rtp_echo" => Action::EchoAll(operand(compiler, &mut attributes)?),
        "exec" => exec(compiler, &mut attributes)?,
        name => {
            return Err(Mistake::new(
                element.line,
                format!("the action <{name}> is not supported"),
            ));
        }
    };
    attributes.none(&mut compiler.warnings)?;
    if let Some(child) = element.children.first() {
        let text = format!(
            "<{}> inside <{}> is passed over, as SIPp does",
            child.name, element.name
        );
        compiler.warnings.push(Mistake::new(child.line, text));
    }
    Ok(action)
}

fn variable(
    compiler: &mut Compiler<'_>,
    attributes: &mut Attributes<'_>,
    name: &str,
) -> Result<u16, Mistake> {
    let value = attributes.need(name)?;
    compiler.variable(attributes.element, value)
}

fn text(
    compiler: &mut Compiler<'_>,
    attributes: &mut Attributes<'_>,
    name: &str,
) -> Result<Text, Mistake> {
    let value = attributes.need(name)?;
    compiler.text(attributes.element, value)
}

fn operand(
    compiler: &mut Compiler<'_>,
    attributes: &mut Attributes<'_>,
) -> Result<Operand, Mistake> {
    match (attributes.number("value")?, attributes.take("variable")) {
        (Some(value), None) => Ok(Operand::Number(value)),
        (None, Some(name)) => compiler
            .variable(attributes.element, name)
            .map(Operand::Variable),
        _ => Err(attributes.wrong("either value or variable")),
    }
}

fn compute(
    compiler: &mut Compiler<'_>,
    attributes: &mut Attributes<'_>,
    operation: Operation,
) -> Result<Action, Mistake> {
    let to = variable(compiler, attributes, "assign_to")?;
    let operand = operand(compiler, attributes)?;
    if operation == Operation::Divide && operand == Operand::Number(0.0) {
        return Err(attributes.wrong("division by zero"));
    }
    Ok(Action::Compute(operation, to, operand))
}

/// `check_it` and `check_it_inverse`.
fn check(attributes: &mut Attributes<'_>) -> Result<Option<bool>, Mistake> {
    let wanted = attributes.flag("check_it")?;
    match (wanted, attributes.flag("check_it_inverse")?) {
        (Some(true), Some(true)) => Err(attributes.wrong("both check_it and check_it_inverse")),
        (Some(true), _) => Ok(Some(true)),
        (_, Some(true)) => Ok(Some(false)),
        _ => Ok(None),
    }
}

/// The outcome of a comparison: it goes into a variable, decides about the call, or both.
fn outcome(
    compiler: &mut Compiler<'_>,
    attributes: &mut Attributes<'_>,
) -> Result<(Option<u16>, Option<bool>), Mistake> {
    let check = check(attributes)?;
    let to = match (attributes.take("assign_to"), check) {
        (Some(name), _) => Some(compiler.variable(attributes.element, name)?),
        (None, Some(_)) => None,
        (None, None) => return Err(attributes.wrong("the attribute assign_to is missing")),
    };
    Ok((to, check))
}

fn compare_texts(
    compiler: &mut Compiler<'_>,
    attributes: &mut Attributes<'_>,
) -> Result<Action, Mistake> {
    let element = attributes.element;
    let (to, check) = outcome(compiler, attributes)?;
    let left = variable(compiler, attributes, "variable")?;
    let right = match attributes.take("value") {
        Some(value) => compiler.text(element, value)?,
        None => {
            let name = attributes.need("variable2")?.trim();
            compiler.variable(element, name)?;
            compiler.text(element, &format!("[${}]", name.trim_start_matches('$')))?
        }
    };
    Ok(Action::CompareText {
        to,
        check,
        left,
        right,
    })
}

/// The injection file of an action.
fn injection(compiler: &mut Compiler<'_>, attributes: &mut Attributes<'_>) -> Result<u16, Mistake> {
    let name = attributes.need("file")?;
    compiler
        .names
        .file(Some(name))
        .map_err(|text| attributes.wrong(text))
}

fn test(compiler: &mut Compiler<'_>, attributes: &mut Attributes<'_>) -> Result<Action, Mistake> {
    let (to, check) = outcome(compiler, attributes)?;
    let left = variable(compiler, attributes, "variable")?;
    let compare = match attributes.need("compare")? {
        "equal" => Compare::Equal,
        "not_equal" => Compare::NotEqual,
        "greater_than" => Compare::Greater,
        "less_than" => Compare::Less,
        "greater_than_equal" => Compare::GreaterEqual,
        "less_than_equal" => Compare::LessEqual,
        other => {
            return Err(attributes.wrong(format!("compare={other:?} is not supported")));
        }
    };
    let right = match (attributes.number("value")?, attributes.take("variable2")) {
        (Some(value), None) => Operand::Number(value),
        (None, Some(name)) => Operand::Variable(compiler.variable(attributes.element, name)?),
        _ => return Err(attributes.wrong("either value or variable2")),
    };
    Ok(Action::Test {
        to,
        check,
        left,
        compare,
        right,
    })
}

fn clock(compiler: &mut Compiler<'_>, attributes: &mut Attributes<'_>) -> Result<Action, Mistake> {
    let names = list(attributes.need("assign_to")?);
    let [seconds, microseconds] = names.as_slice() else {
        return Err(attributes.wrong("assign_to wants two variables"));
    };
    Ok(Action::Clock(
        compiler.variable(attributes.element, seconds)?,
        compiler.variable(attributes.element, microseconds)?,
    ))
}

fn lookup(compiler: &mut Compiler<'_>, attributes: &mut Attributes<'_>) -> Result<Action, Mistake> {
    let to = variable(compiler, attributes, "assign_to")?;
    let file = injection(compiler, attributes)?;
    let key = text(compiler, attributes, "key")?;
    Ok(Action::Lookup { to, file, key })
}

fn ereg(compiler: &mut Compiler<'_>, attributes: &mut Attributes<'_>) -> Result<Action, Mistake> {
    let regex = ere::compile(attributes.need("regexp")?).map_err(|text| attributes.wrong(text))?;
    let any_case = attributes.flag("case_indep")?.unwrap_or(false);
    let occurrence = match attributes.number::<u32>("occurrence")? {
        Some(number) => number.max(1),
        // SIPp takes this spelling as well.
        None => attributes.number::<u32>("occurence")?.unwrap_or(1).max(1),
    };
    let line_start = attributes.flag("start_line")?.unwrap_or(false);
    let place = match attributes.take("search_in").unwrap_or("msg") {
        "msg" => Where::Message,
        "body" => Where::Body,
        "hdr" => Where::Header {
            name: bytes(attributes.need("header")?),
            any_case,
            line_start,
            occurrence,
        },
        "var" => Where::Variable(variable(compiler, attributes, "variable")?),
        other => {
            return Err(attributes.wrong(format!("search_in={other:?} is not supported")));
        }
    };
    let check = check(attributes)?;
    let mut assign = Vec::new();
    for name in list(attributes.take("assign_to").unwrap_or_default()) {
        assign.push(compiler.variable(attributes.element, &name)?);
    }
    if assign.is_empty() && check.is_none() {
        return Err(attributes.wrong("the attribute assign_to is missing"));
    }
    Ok(Action::Match {
        regex,
        place,
        check,
        assign,
    })
}

fn exec(compiler: &mut Compiler<'_>, attributes: &mut Attributes<'_>) -> Result<Action, Mistake> {
    if let Some(command) = attributes.take("int_cmd") {
        return match command.trim() {
            "stop_call" => Ok(Action::StopCall),
            "stop_gracefully" => Ok(Action::StopGracefully),
            "stop_now" => Ok(Action::StopNow),
            other => {
                let text = format!("int_cmd={other:?} is taken for stop_call, as SIPp does");
                compiler.warnings.push(attributes.wrong(text));
                Ok(Action::StopCall)
            }
        };
    }
    if attributes
        .element
        .attributes
        .iter()
        .any(|(name, _)| name == "command")
    {
        return text(compiler, attributes, "command").map(Action::Command);
    }
    for (name, line) in [
        ("play_pcap_audio", Line::Audio),
        ("play_pcap_image", Line::Image),
        ("play_pcap_video", Line::Video),
    ] {
        if let Some(file) = attributes.take(name) {
            let capture = file_number(&mut compiler.program.captures, file)
                .ok_or_else(|| attributes.wrong("too many files"))?;
            return Ok(Action::Media(Media::Play { capture, line }));
        }
    }
    if attributes
        .element
        .attributes
        .iter()
        .any(|(name, _)| name == "play_dtmf")
    {
        return text(compiler, attributes, "play_dtmf").map(Action::Digits);
    }
    if let Some(stream) = attributes.take("rtp_stream") {
        return rtp_stream(compiler, attributes, stream);
    }
    if let Some(echo) = attributes.take("rtp_echo") {
        let what = echo.split(',').next().unwrap_or_default().trim();
        let (on, video) = match what {
            "startaudio" | "updateaudio" => (true, false),
            "stopaudio" => (false, false),
            "startvideo" | "updatevideo" => (true, true),
            "stopvideo" => (false, true),
            other => return Err(attributes.wrong(format!("rtp_echo={other:?} is not supported"))),
        };
        return Ok(Action::Media(Media::Echo { on, video }));
    }
    let names: Vec<&str> = attributes
        .element
        .attributes
        .iter()
        .map(|(name, _)| name.as_str())
        .collect();
    Err(attributes.wrong(format!("{} is not supported", names.join(", "))))
}

/// `file[,times[,payload type[,format]]]`, `apattern,number[,payload type[,format]]`, or a word of control.
fn rtp_stream(
    compiler: &mut Compiler<'_>,
    attributes: &Attributes<'_>,
    stream: &str,
) -> Result<Action, Mistake> {
    let words: Vec<&str> = stream.split(',').map(str::trim).collect();
    let media = match words.as_slice() {
        ["pause"] => Media::Pause([true, true]),
        ["resume"] => Media::Resume([true, true]),
        ["pauseapattern"] => Media::Pause([true, false]),
        ["resumeapattern"] => Media::Resume([true, false]),
        ["pausevpattern"] => Media::Pause([false, true]),
        ["resumevpattern"] => Media::Resume([false, true]),
        [file, rest @ ..] if !file.is_empty() && rest.len() <= 3 => {
            let number = |at: usize, default: i32| match rest.get(at) {
                None => Ok(default),
                Some(word) => word
                    .parse::<i32>()
                    .map_err(|_| attributes.wrong(format!("{word:?} is no number"))),
            };
            let format = rest.get(2).copied().unwrap_or_default();
            let packing = u8::try_from(number(1, 8)?)
                .ok()
                .and_then(|payload_type| Packing::of(payload_type, format))
                .ok_or_else(|| {
                    attributes.wrong(
                        "formats of rtp_stream are 0 (PCMU/8000), 8 (PCMA/8000), 9 (G722/8000), 18 (G729/8000), \
                         13 (CN/8000), and with a payload type from 96 on iLBC/8000 and H264/90000",
                    )
                })?;
            if matches!(*file, "apattern" | "vpattern") {
                let octet = u8::try_from(number(0, 1)?)
                    .ok()
                    .and_then(|number| PATTERNS.get(usize::from(number).checked_sub(1)?))
                    .ok_or_else(|| attributes.wrong("patterns of rtp_stream are 1 to 6"))?;
                return Ok(Action::Media(Media::Pattern {
                    octet: *octet,
                    packing,
                }));
            }
            let sound = file_number(&mut compiler.program.sounds, file)
                .ok_or_else(|| attributes.wrong("too many files"))?;
            Media::Stream {
                sound,
                times: number(0, 1)?,
                packing,
            }
        }
        _ => {
            return Err(attributes.wrong(format!("rtp_stream={stream:?} is not supported")));
        }
    };
    Ok(Action::Media(media))
}

fn file_number(files: &mut Vec<String>, name: &str) -> Option<u16> {
    if let Some(at) = files.iter().position(|known| known == name) {
        return Some(at as u16);
    }
    if files.len() >= FILES {
        return None;
    }
    files.push(name.to_owned());
    Some((files.len() - 1) as u16)
}

impl Action {
    /// The texts in it.
    pub fn each_text(&self, see: &mut dyn FnMut(&Text)) {
        match self {
            Action::Log(text)
            | Action::Warning(text)
            | Action::Error(text)
            | Action::AssignText(_, text)
            | Action::Command(text)
            | Action::Digits(text)
            | Action::Insert { value: text, .. }
            | Action::CompareText { right: text, .. }
            | Action::Lookup { key: text, .. } => see(text),
            Action::Redirect {
                host,
                port,
                protocol,
            } => [host, port, protocol].into_iter().for_each(&mut *see),
            Action::Verify {
                username, password, ..
            } => [username, password].into_iter().for_each(&mut *see),
            Action::Replace { line, value, .. } => [line, value].into_iter().for_each(&mut *see),
            _ => {}
        }
    }

    /// The texts in it, to be changed.
    pub fn each_text_mut(&mut self, change: &mut dyn FnMut(&mut Text)) {
        match self {
            Action::Log(text)
            | Action::Warning(text)
            | Action::Error(text)
            | Action::AssignText(_, text)
            | Action::Command(text)
            | Action::Digits(text)
            | Action::Insert { value: text, .. }
            | Action::CompareText { right: text, .. }
            | Action::Lookup { key: text, .. } => change(text),
            Action::Redirect {
                host,
                port,
                protocol,
            } => [host, port, protocol].into_iter().for_each(change),
            Action::Verify {
                username, password, ..
            } => [username, password].into_iter().for_each(change),
            Action::Replace { line, value, .. } => [line, value].into_iter().for_each(change),
            _ => {}
        }
    }
}
