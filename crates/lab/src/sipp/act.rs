//! Compiles the actions of a scenario.

use super::compile::{Compiler, ElementAttributes, distribution, list};
use super::ere;
use super::media::Packetization;
use super::program::{
    ComparisonOperator, MatchTarget, MediaAction, Operand, Operation, PeerMediaLine, ScenarioAction,
};
use super::template::TextTemplate;
use super::xml::{Element, ScenarioError, bytes};

/// The octets of SIPp's media patterns.
const PATTERNS: [u8; 6] = [0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff];
/// Most media files of a scenario.
const MAX_FILES: usize = 1_000;

/// Compiles one action.
pub(super) fn compile(
    compiler: &mut Compiler<'_>,
    element: &Element,
) -> Result<ScenarioAction, ScenarioError> {
    let mut attributes = ElementAttributes::of(element);
    let action = match element.name.as_str() {
        "ereg" => ereg(compiler, &mut attributes)?,
        "log" => ScenarioAction::Log(text(compiler, &mut attributes, "message")?),
        "warning" => ScenarioAction::Warning(text(compiler, &mut attributes, "message")?),
        "error" => ScenarioAction::Error(text(compiler, &mut attributes, "message")?),
        "assignstr" => ScenarioAction::AssignText(
            variable(compiler, &mut attributes, "assign_to")?,
            text(compiler, &mut attributes, "value")?,
        ),
        "assign" => compute(compiler, &mut attributes, Operation::Assign)?,
        "add" => compute(compiler, &mut attributes, Operation::Add)?,
        "subtract" => compute(compiler, &mut attributes, Operation::Subtract)?,
        "multiply" => compute(compiler, &mut attributes, Operation::Multiply)?,
        "divide" => compute(compiler, &mut attributes, Operation::Divide)?,
        "sample" => ScenarioAction::Sample(
            variable(compiler, &mut attributes, "assign_to")?,
            distribution(&mut attributes)?,
        ),
        "todouble" => ScenarioAction::ToNumber {
            to: variable(compiler, &mut attributes, "assign_to")?,
            from: variable(compiler, &mut attributes, "variable")?,
        },
        "test" => test(compiler, &mut attributes)?,
        "strcmp" => compare_texts(compiler, &mut attributes)?,
        "trim" => ScenarioAction::Trim(variable(compiler, &mut attributes, "assign_to")?),
        "gettimeofday" => clock(compiler, &mut attributes)?,
        "jump" => ScenarioAction::Jump(operand(compiler, &mut attributes)?),
        "setdest" => ScenarioAction::Redirect {
            host: text(compiler, &mut attributes, "host")?,
            port: text(compiler, &mut attributes, "port")?,
            protocol: text(compiler, &mut attributes, "protocol")?,
        },
        "verifyauth" => ScenarioAction::Verify {
            to: variable(compiler, &mut attributes, "assign_to")?,
            username: text(compiler, &mut attributes, "username")?,
            password: text(compiler, &mut attributes, "password")?,
        },
        "lookup" => lookup(compiler, &mut attributes)?,
        "insert" => ScenarioAction::Insert {
            file: injection(compiler, &mut attributes)?,
            value: text(compiler, &mut attributes, "value")?,
        },
        "replace" => ScenarioAction::Replace {
            file: injection(compiler, &mut attributes)?,
            line: text(compiler, &mut attributes, "line")?,
            value: text(compiler, &mut attributes, "value")?,
        },
        "urldecode" | "urlencode" => ScenarioAction::Url {
            variable: variable(compiler, &mut attributes, "variable")?,
            encode: element.name == "urlencode",
        },
        "index" => ScenarioAction::StepIndex(variable(compiler, &mut attributes, "assign_to")?),
        "pauserestore" => ScenarioAction::RestorePause(operand(compiler, &mut attributes)?),
        "closecon" => ScenarioAction::CloseConnection,
        "rtp_echo" => ScenarioAction::EchoAll(operand(compiler, &mut attributes)?),
        "exec" => exec(compiler, &mut attributes)?,
        name => {
            return Err(ScenarioError::new(
                element.line,
                format!("the action <{name}> is not supported"),
            ));
        }
    };
    attributes.finish(&mut compiler.warnings)?;
    if let Some(child) = element.children.first() {
        let text = format!(
            "<{}> inside <{}> is ignored, as in SIPp",
            child.name, element.name
        );
        compiler.warnings.push(ScenarioError::new(child.line, text));
    }
    Ok(action)
}

fn variable(
    compiler: &mut Compiler<'_>,
    attributes: &mut ElementAttributes<'_>,
    name: &str,
) -> Result<u16, ScenarioError> {
    let value = attributes.require(name)?;
    compiler.variable(attributes.element, value)
}

fn text(
    compiler: &mut Compiler<'_>,
    attributes: &mut ElementAttributes<'_>,
    name: &str,
) -> Result<TextTemplate, ScenarioError> {
    let value = attributes.require(name)?;
    compiler.text(attributes.element, value)
}

fn operand(
    compiler: &mut Compiler<'_>,
    attributes: &mut ElementAttributes<'_>,
) -> Result<Operand, ScenarioError> {
    match (attributes.number("value")?, attributes.take("variable")) {
        (Some(value), None) => Ok(Operand::Number(value)),
        (None, Some(name)) => compiler
            .variable(attributes.element, name)
            .map(Operand::Variable),
        _ => Err(attributes.wrong("either value or variable is required")),
    }
}

fn compute(
    compiler: &mut Compiler<'_>,
    attributes: &mut ElementAttributes<'_>,
    operation: Operation,
) -> Result<ScenarioAction, ScenarioError> {
    let to = variable(compiler, attributes, "assign_to")?;
    let operand = operand(compiler, attributes)?;
    if operation == Operation::Divide && operand == Operand::Number(0.0) {
        return Err(attributes.wrong("division by zero"));
    }
    Ok(ScenarioAction::Compute(operation, to, operand))
}

/// `check_it` and `check_it_inverse`.
fn check(attributes: &mut ElementAttributes<'_>) -> Result<Option<bool>, ScenarioError> {
    let expected = attributes.flag("check_it")?;
    match (expected, attributes.flag("check_it_inverse")?) {
        (Some(true), Some(true)) => {
            Err(attributes.wrong("check_it and check_it_inverse exclude each other"))
        }
        (Some(true), _) => Ok(Some(true)),
        (_, Some(true)) => Ok(Some(false)),
        _ => Ok(None),
    }
}

/// The result of a comparison: it is assigned to a variable, decides about the call, or both.
fn outcome(
    compiler: &mut Compiler<'_>,
    attributes: &mut ElementAttributes<'_>,
) -> Result<(Option<u16>, Option<bool>), ScenarioError> {
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
    attributes: &mut ElementAttributes<'_>,
) -> Result<ScenarioAction, ScenarioError> {
    let element = attributes.element;
    let (to, check) = outcome(compiler, attributes)?;
    let left = variable(compiler, attributes, "variable")?;
    let right = match attributes.take("value") {
        Some(value) => compiler.text(element, value)?,
        None => {
            let name = attributes.require("variable2")?.trim();
            compiler.variable(element, name)?;
            compiler.text(element, &format!("[${}]", name.trim_start_matches('$')))?
        }
    };
    Ok(ScenarioAction::CompareText {
        to,
        check,
        left,
        right,
    })
}

/// The injection file of an action.
fn injection(
    compiler: &mut Compiler<'_>,
    attributes: &mut ElementAttributes<'_>,
) -> Result<u16, ScenarioError> {
    let name = attributes.require("file")?;
    compiler
        .names
        .file(Some(name))
        .map_err(|text| attributes.wrong(text))
}

fn test(
    compiler: &mut Compiler<'_>,
    attributes: &mut ElementAttributes<'_>,
) -> Result<ScenarioAction, ScenarioError> {
    let (to, check) = outcome(compiler, attributes)?;
    let left = variable(compiler, attributes, "variable")?;
    let compare = match attributes.require("compare")? {
        "equal" => ComparisonOperator::Equal,
        "not_equal" => ComparisonOperator::NotEqual,
        "greater_than" => ComparisonOperator::Greater,
        "less_than" => ComparisonOperator::Less,
        "greater_than_equal" => ComparisonOperator::GreaterEqual,
        "less_than_equal" => ComparisonOperator::LessEqual,
        other => {
            return Err(attributes.wrong(format!("compare={other:?} is not supported")));
        }
    };
    let right = match (attributes.number("value")?, attributes.take("variable2")) {
        (Some(value), None) => Operand::Number(value),
        (None, Some(name)) => Operand::Variable(compiler.variable(attributes.element, name)?),
        _ => return Err(attributes.wrong("either value or variable2 is required")),
    };
    Ok(ScenarioAction::Test {
        to,
        check,
        left,
        compare,
        right,
    })
}

fn clock(
    compiler: &mut Compiler<'_>,
    attributes: &mut ElementAttributes<'_>,
) -> Result<ScenarioAction, ScenarioError> {
    let names = list(attributes.require("assign_to")?);
    let [seconds, microseconds] = names.as_slice() else {
        return Err(attributes.wrong("assign_to needs two variables"));
    };
    Ok(ScenarioAction::Clock(
        compiler.variable(attributes.element, seconds)?,
        compiler.variable(attributes.element, microseconds)?,
    ))
}

fn lookup(
    compiler: &mut Compiler<'_>,
    attributes: &mut ElementAttributes<'_>,
) -> Result<ScenarioAction, ScenarioError> {
    let to = variable(compiler, attributes, "assign_to")?;
    let file = injection(compiler, attributes)?;
    let key = text(compiler, attributes, "key")?;
    Ok(ScenarioAction::Lookup { to, file, key })
}

fn ereg(
    compiler: &mut Compiler<'_>,
    attributes: &mut ElementAttributes<'_>,
) -> Result<ScenarioAction, ScenarioError> {
    let regex =
        ere::compile(attributes.require("regexp")?).map_err(|text| attributes.wrong(text))?;
    let any_case = attributes.flag("case_indep")?.unwrap_or(false);
    let occurrence = match attributes.number::<u32>("occurrence")? {
        Some(number) => number.max(1),
        // SIPp accepts this misspelling too.
        None => attributes.number::<u32>("occurence")?.unwrap_or(1).max(1),
    };
    let line_start = attributes.flag("start_line")?.unwrap_or(false);
    let target = match attributes.take("search_in").unwrap_or("msg") {
        "msg" => MatchTarget::Message,
        "body" => MatchTarget::Body,
        "hdr" => MatchTarget::Header {
            name: bytes(attributes.require("header")?),
            any_case,
            line_start,
            occurrence,
        },
        "var" => MatchTarget::Variable(variable(compiler, attributes, "variable")?),
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
    Ok(ScenarioAction::Match {
        regex,
        target,
        check,
        assign,
    })
}

fn exec(
    compiler: &mut Compiler<'_>,
    attributes: &mut ElementAttributes<'_>,
) -> Result<ScenarioAction, ScenarioError> {
    if let Some(command) = attributes.take("int_cmd") {
        return match command.trim() {
            "stop_call" => Ok(ScenarioAction::StopCall),
            "stop_gracefully" => Ok(ScenarioAction::StopGracefully),
            "stop_now" => Ok(ScenarioAction::StopNow),
            other => {
                let text = format!("int_cmd={other:?} is treated as stop_call, as in SIPp");
                compiler.warnings.push(attributes.wrong(text));
                Ok(ScenarioAction::StopCall)
            }
        };
    }
    if attributes
        .element
        .attributes
        .iter()
        .any(|(name, _)| name == "command")
    {
        return text(compiler, attributes, "command").map(ScenarioAction::Command);
    }
    for (name, line) in [
        ("play_pcap_audio", PeerMediaLine::Audio),
        ("play_pcap_image", PeerMediaLine::Image),
        ("play_pcap_video", PeerMediaLine::Video),
    ] {
        if let Some(file) = value_or_key(compiler, attributes, name)? {
            let capture = file_number(&mut compiler.program.captures, &file)
                .ok_or_else(|| attributes.wrong("too many files"))?;
            return Ok(ScenarioAction::Media(MediaAction::Play { capture, line }));
        }
    }
    if attributes
        .element
        .attributes
        .iter()
        .any(|(name, _)| name == "play_dtmf")
    {
        return text(compiler, attributes, "play_dtmf").map(ScenarioAction::Digits);
    }
    if let Some(stream) = value_or_key(compiler, attributes, "rtp_stream")? {
        return rtp_stream(compiler, attributes, &stream);
    }
    if let Some(echo) = value_or_key(compiler, attributes, "rtp_echo")? {
        let mode = echo.split(',').next().unwrap_or_default().trim();
        let (on, video) = match mode {
            "startaudio" | "updateaudio" => (true, false),
            "stopaudio" => (false, false),
            "startvideo" | "updatevideo" => (true, true),
            "stopvideo" => (false, true),
            other => return Err(attributes.wrong(format!("rtp_echo={other:?} is not supported"))),
        };
        return Ok(ScenarioAction::Media(MediaAction::Echo { on, video }));
    }
    let names: Vec<&str> = attributes
        .element
        .attributes
        .iter()
        .map(|(name, _)| name.as_str())
        .collect();
    Err(attributes.wrong(format!("{} is not supported", names.join(", "))))
}

/// The value of an attribute of media. In brackets it is a keyword of the command line, as in SIPp.
fn value_or_key(
    compiler: &Compiler<'_>,
    attributes: &mut ElementAttributes<'_>,
    name: &str,
) -> Result<Option<String>, ScenarioError> {
    let Some(value) = attributes.take(name) else {
        return Ok(None);
    };
    let inside = value
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let Some(key) = inside else {
        return Ok(Some(value.to_owned()));
    };
    match compiler.names.keys.get(key) {
        Some(value) => Ok(Some(value.clone())),
        None => Err(attributes.wrong(format!(
            "{name}={value:?} is a keyword without a value: give it with --key {key}=VALUE"
        ))),
    }
}

/// `file[,times[,payload type[,format]]]`, `apattern,number[,payload type[,format]]`, or a control word.
fn rtp_stream(
    compiler: &mut Compiler<'_>,
    attributes: &ElementAttributes<'_>,
    stream: &str,
) -> Result<ScenarioAction, ScenarioError> {
    let words: Vec<&str> = stream.split(',').map(str::trim).collect();
    let media = match words.as_slice() {
        ["pause"] => MediaAction::Pause([true, true]),
        ["resume"] => MediaAction::Resume([true, true]),
        ["pauseapattern"] => MediaAction::Pause([true, false]),
        ["resumeapattern"] => MediaAction::Resume([true, false]),
        ["pausevpattern"] => MediaAction::Pause([false, true]),
        ["resumevpattern"] => MediaAction::Resume([false, true]),
        [file, rest @ ..] if !file.is_empty() && rest.len() <= 3 => {
            let number = |at: usize, default: i32| match rest.get(at) {
                None => Ok(default),
                Some(word) => word
                    .parse::<i32>()
                    .map_err(|_| attributes.wrong(format!("{word:?} is not a number"))),
            };
            let format = rest.get(2).copied().unwrap_or_default();
            let packing = u8::try_from(number(1, 8)?)
                .ok()
                .and_then(|payload_type| Packetization::of(payload_type, format))
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
                    .ok_or_else(|| {
                        attributes.wrong("rtp_stream: expected a pattern from 1 to 6")
                    })?;
                return Ok(ScenarioAction::Media(MediaAction::Pattern {
                    octet: *octet,
                    packing,
                }));
            }
            let sound = file_number(&mut compiler.program.sounds, file)
                .ok_or_else(|| attributes.wrong("too many files"))?;
            MediaAction::Stream {
                sound,
                times: number(0, 1)?,
                packing,
            }
        }
        _ => {
            return Err(attributes.wrong(format!("rtp_stream={stream:?} is not supported")));
        }
    };
    Ok(ScenarioAction::Media(media))
}

fn file_number(files: &mut Vec<String>, name: &str) -> Option<u16> {
    if let Some(at) = files.iter().position(|known| known == name) {
        return Some(at as u16);
    }
    if files.len() >= MAX_FILES {
        return None;
    }
    files.push(name.to_owned());
    Some((files.len() - 1) as u16)
}

impl ScenarioAction {
    /// Visits the texts of the action.
    pub fn each_text(&self, visit: &mut dyn FnMut(&TextTemplate)) {
        match self {
            ScenarioAction::Log(text)
            | ScenarioAction::Warning(text)
            | ScenarioAction::Error(text)
            | ScenarioAction::AssignText(_, text)
            | ScenarioAction::Command(text)
            | ScenarioAction::Digits(text)
            | ScenarioAction::Insert { value: text, .. }
            | ScenarioAction::CompareText { right: text, .. }
            | ScenarioAction::Lookup { key: text, .. } => visit(text),
            ScenarioAction::Redirect {
                host,
                port,
                protocol,
            } => [host, port, protocol].into_iter().for_each(&mut *visit),
            ScenarioAction::Verify {
                username, password, ..
            } => [username, password].into_iter().for_each(&mut *visit),
            ScenarioAction::Replace { line, value, .. } => {
                [line, value].into_iter().for_each(&mut *visit)
            }
            _ => {}
        }
    }

    /// Visits the texts of the action, mutably.
    pub fn each_text_mut(&mut self, change: &mut dyn FnMut(&mut TextTemplate)) {
        match self {
            ScenarioAction::Log(text)
            | ScenarioAction::Warning(text)
            | ScenarioAction::Error(text)
            | ScenarioAction::AssignText(_, text)
            | ScenarioAction::Command(text)
            | ScenarioAction::Digits(text)
            | ScenarioAction::Insert { value: text, .. }
            | ScenarioAction::CompareText { right: text, .. }
            | ScenarioAction::Lookup { key: text, .. } => change(text),
            ScenarioAction::Redirect {
                host,
                port,
                protocol,
            } => [host, port, protocol].into_iter().for_each(change),
            ScenarioAction::Verify {
                username, password, ..
            } => [username, password].into_iter().for_each(change),
            ScenarioAction::Replace { line, value, .. } => {
                [line, value].into_iter().for_each(change)
            }
            _ => {}
        }
    }
}
