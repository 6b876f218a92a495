//! From the XML of a scenario to its program. What is not known is refused by name, all of it in one go.

use super::act;
use super::distribution::Distribution;
use super::ere;
use super::program::{Expected, Kind, Length, Optional, Program, Receive, Scope, Send, Step};
use super::template::{self, Names, Text};
use super::xml::{Element, Mistake, bytes};
use std::collections::BTreeMap;
use std::time::Duration;

/// Steps of a scenario, at most.
const STEPS: usize = 10_000;
/// Mistakes told at a time, at most.
const MISTAKES: usize = 50;

/// The attributes of an element; [`Attributes::none`] tells those that are left.
pub(super) struct Attributes<'e> {
    pub(super) element: &'e Element,
    left: Vec<&'e (String, String)>,
}

impl<'e> Attributes<'e> {
    pub(super) fn of(element: &'e Element) -> Attributes<'e> {
        Attributes {
            element,
            left: element.attributes.iter().collect(),
        }
    }

    pub(super) fn take(&mut self, name: &str) -> Option<&'e str> {
        let at = self.left.iter().position(|(known, _)| known == name)?;
        Some(self.left.remove(at).1.as_str())
    }

    pub(super) fn wrong(&self, text: impl std::fmt::Display) -> Mistake {
        Mistake::new(
            self.element.line,
            format!("<{}>: {text}", self.element.name),
        )
    }

    pub(super) fn need(&mut self, name: &str) -> Result<&'e str, Mistake> {
        self.take(name)
            .ok_or_else(|| self.wrong(format!("the attribute {name} is missing")))
    }

    pub(super) fn number<N: std::str::FromStr>(
        &mut self,
        name: &str,
    ) -> Result<Option<N>, Mistake> {
        match self.take(name) {
            None => Ok(None),
            // An empty value is zero, as for SIPp.
            Some(text) => match (if text.trim().is_empty() {
                "0"
            } else {
                text.trim()
            })
            .parse()
            {
                Ok(number) => Ok(Some(number)),
                Err(_) => Err(self.wrong(format!("{name}={text:?} is no number of its kind"))),
            },
        }
    }

    pub(super) fn flag(&mut self, name: &str) -> Result<Option<bool>, Mistake> {
        match self.take(name).map(str::trim) {
            None => Ok(None),
            Some("true" | "1" | "yes") => Ok(Some(true)),
            Some("false" | "0" | "no" | "") => Ok(Some(false)),
            // Any number but zero is true, as for SIPp.
            Some(text) if text.parse::<i64>().is_ok() => Ok(Some(true)),
            Some(text) => Err(self.wrong(format!("{name}={text:?} is neither true nor false"))),
        }
    }

    /// Attributes that are left get a warning, as SIPp passes them over.
    pub(super) fn none(self, warnings: &mut Vec<Mistake>) -> Result<(), Mistake> {
        for (name, value) in &self.left {
            warnings.push(self.wrong(format!(
                "the attribute {name}={value:?} is passed over, as SIPp does"
            )));
        }
        Ok(())
    }
}

/// Where labels lead: by name before all steps are known.
#[derive(Clone, Debug, Default)]
struct Jumps {
    next: Option<String>,
    on_timeout: Option<String>,
}

pub(super) struct Compiler<'n> {
    pub(super) program: Program,
    pub(super) names: &'n mut Names,
    jumps: Vec<Jumps>,
    labels: BTreeMap<String, u16>,
    mistakes: Vec<Mistake>,
    /// What SIPp passes over, too.
    pub(super) warnings: Vec<Mistake>,
    /// A request was sent whose method only shows when it is written.
    any_method: bool,
    /// `hiderest`: steps are left out of the table where they say nothing else.
    hides: bool,
}

/// Compiles a scenario. `names` gives the command line's keywords and files, and takes the variables.
///
/// # Errors
/// All mistakes that were found, in order of their lines.
pub fn compile(root: &Element, names: &mut Names) -> Result<Program, Vec<Mistake>> {
    let mut compiler = Compiler {
        program: Program::default(),
        names,
        jumps: Vec::new(),
        labels: BTreeMap::new(),
        mistakes: Vec::new(),
        warnings: Vec::new(),
        any_method: false,
        hides: false,
    };
    if root.name != "scenario" {
        let text = format!("<{}> instead of <scenario>", root.name);
        return Err(vec![Mistake::new(root.line, text)]);
    }
    compiler.scenario(root);
    if compiler.mistakes.is_empty() {
        compiler.link();
    }
    if compiler.mistakes.is_empty() {
        let mut program = compiler.program;
        program.variables = compiler.names.variables.clone();
        program.warnings = compiler.warnings;
        program.warnings.sort_by_key(|warning| warning.line);
        super::survey::survey(&mut program);
        return Ok(program);
    }
    let mut mistakes = compiler.mistakes;
    mistakes.sort_by_key(|mistake| mistake.line);
    mistakes.truncate(MISTAKES);
    Err(mistakes)
}

impl Compiler<'_> {
    fn scenario(&mut self, root: &Element) {
        let mut attributes = Attributes::of(root);
        self.program.name = attributes.take("name").unwrap_or("scenario").to_owned();
        if let Err(mistake) = attributes.none(&mut self.warnings) {
            self.mistakes.push(mistake);
        }
        for child in &root.children {
            if self.program.steps.len() >= STEPS {
                let text = format!("more than {STEPS} steps");
                self.mistakes.push(Mistake::new(child.line, text));
                return;
            }
            if let Err(mistake) = self.command(child) {
                self.mistakes.push(mistake);
            }
        }
        if self.program.steps.is_empty() && self.mistakes.is_empty() {
            let text = "a scenario without send, recv, pause or nop";
            self.mistakes.push(Mistake::new(root.line, text));
        }
    }

    fn command(&mut self, element: &Element) -> Result<(), Mistake> {
        let mut attributes = Attributes::of(element);
        match element.name.as_str() {
            "send" => self.send(attributes),
            "recv" => self.receive(attributes),
            "pause" => self.pause(attributes, false),
            "timewait" => self.pause(attributes, true),
            "nop" => {
                let (step, jumps) = self.common(&mut attributes)?;
                attributes.none(&mut self.warnings)?;
                self.push(element, step, jumps)
            }
            "label" => {
                let name = attributes.need("id")?.to_owned();
                let here = self.program.steps.len() as u16;
                if self.labels.insert(name.clone(), here).is_some() {
                    return Err(attributes.wrong(format!("the label {name} is there twice")));
                }
                attributes.none(&mut self.warnings)
            }
            "ResponseTimeRepartition" => {
                self.program.response_classes =
                    classes(&mut attributes, "value", &mut self.warnings)?;
                attributes.none(&mut self.warnings)
            }
            "CallLengthRepartition" => {
                self.program.length_classes =
                    classes(&mut attributes, "value", &mut self.warnings)?;
                attributes.none(&mut self.warnings)
            }
            // SIPp's own tests write it so; SIPp itself passes it over.
            "response-time" => {
                self.program.response_classes =
                    classes(&mut attributes, "repartition", &mut self.warnings)?;
                attributes.none(&mut self.warnings)
            }
            "Global" => self.declare(attributes, Scope::Global),
            "User" => self.declare(attributes, Scope::User),
            "init" => self.init(element),
            "DefaultMessage" => {
                let id = attributes.need("id")?.to_owned();
                self.warnings.push(attributes.wrong(format!(
                    "the message {id} is not used: messages that no step sends have a fixed form here"
                )));
                attributes.none(&mut self.warnings)
            }
            "Reference" => {
                for name in list(attributes.need("variables")?) {
                    self.variable(element, &name)?;
                }
                attributes.none(&mut self.warnings)
            }
            name => Err(Mistake::new(
                element.line,
                format!("<{name}> is not supported"),
            )),
        }
    }

    fn declare(&mut self, mut attributes: Attributes<'_>, scope: Scope) -> Result<(), Mistake> {
        // Without users a call has them to itself, as with SIPp.
        let scope = match scope {
            Scope::User if !self.names.users => {
                self.warnings.push(attributes.wrong(
                    "there are no users (--users N): each call has these variables of its own",
                ));
                Scope::Call
            }
            scope => scope,
        };
        for name in list(attributes.need("variables")?) {
            let number = self.variable(attributes.element, &name)?;
            if let Some(entry) = self.names.variables.get_mut(usize::from(number)) {
                entry.1 = scope;
            }
        }
        attributes.none(&mut self.warnings)
    }

    pub(super) fn variable(&mut self, element: &Element, name: &str) -> Result<u16, Mistake> {
        let name = name.trim();
        let name = name.strip_prefix('$').unwrap_or(name);
        self.names
            .variable(name)
            .map_err(|text| Mistake::new(element.line, text))
    }

    pub(super) fn text(&mut self, element: &Element, source: &str) -> Result<Text, Mistake> {
        template::text(&bytes(source), self.names)
            .map_err(|text| Mistake::new(element.line, format!("<{}>: {text}", element.name)))
    }

    /// What all commands have.
    fn common(&mut self, attributes: &mut Attributes<'_>) -> Result<(Step, Jumps), Mistake> {
        let element = attributes.element;
        let mut test = None;
        if let Some(name) = attributes.take("test").filter(|name| !name.is_empty()) {
            test = Some(self.variable(element, name)?);
        }
        let chance = attributes.number::<f64>("chance")?.unwrap_or(1.0);
        if !(0.0..=1.0).contains(&chance) {
            return Err(attributes.wrong("chance is from 0 to 1"));
        }
        let mut condition = None;
        if let Some(name) = attributes.take("condexec") {
            condition = Some((self.variable(element, name)?, true));
        }
        if attributes.flag("condexec_inverse")? == Some(true) {
            let Some((variable, _)) = condition else {
                return Err(attributes.wrong("condexec_inverse without condexec"));
            };
            condition = Some((variable, false));
        }
        let starts = self.timers(attributes, "start_rtd")?;
        let stops = self.timers(attributes, "rtd")?;
        let counter = match attributes.take("counter") {
            Some(name) => Some(
                numbered(&mut self.program.counters, name, 100)
                    .ok_or_else(|| attributes.wrong("more than 100 counters"))?,
            ),
            None => None,
        };
        let step = Step {
            line: element.line,
            kind: Kind::Nothing,
            label: attributes.take("display").unwrap_or_default().to_owned(),
            next: None,
            test,
            chance,
            condition,
            starts,
            stops,
            repeats: attributes.flag("repeat_rtd")?.unwrap_or(false),
            counter,
            // SIPp looks only at whether it is there.
            gap: attributes
                .take("crlf")
                .is_some_and(|text| !matches!(text, "false" | "0")),
            hidden: self.hidden(attributes)?,
            actions: self.actions(element)?,
        };
        let jumps = Jumps {
            next: attributes.take("next").map(str::to_owned),
            on_timeout: None,
        };
        Ok((step, jumps))
    }

    fn hidden(&mut self, attributes: &mut Attributes<'_>) -> Result<bool, Mistake> {
        if let Some(rest) = attributes.flag("hiderest")? {
            self.hides = rest;
        }
        Ok(attributes.flag("hide")?.unwrap_or(self.hides))
    }

    /// `<init>`: `<nop>`s and labels of its own, gone through once before the first call.
    fn init(&mut self, element: &Element) -> Result<(), Mistake> {
        Attributes::of(element).none(&mut self.warnings)?;
        let (steps, jumps) = (
            std::mem::take(&mut self.program.steps),
            std::mem::take(&mut self.jumps),
        );
        let labels = std::mem::take(&mut self.labels);
        for child in &element.children {
            let done = match child.name.as_str() {
                "nop" | "label" => self.command(child),
                name => Err(Mistake::new(
                    child.line,
                    format!("<{name}> inside <init>: only <nop> and <label> may stand there"),
                )),
            };
            if let Err(mistake) = done {
                self.mistakes.push(mistake);
            }
        }
        self.link_steps();
        self.program.init.append(&mut self.program.steps);
        self.program.steps = steps;
        self.jumps = jumps;
        self.labels = labels;
        Ok(())
    }

    fn timers(&mut self, attributes: &mut Attributes<'_>, name: &str) -> Result<u64, Mistake> {
        let mut bits = 0;
        for timer in list(attributes.take(name).unwrap_or_default()) {
            let timer = match timer.as_str() {
                "true" => "1",
                "false" => continue,
                other => other,
            };
            let number = numbered(&mut self.program.timers, timer, 64)
                .ok_or_else(|| attributes.wrong("more than 64 response time counters"))?;
            bits |= 1 << number;
        }
        Ok(bits)
    }

    fn actions(&mut self, element: &Element) -> Result<Vec<super::program::Action>, Mistake> {
        let mut actions = Vec::new();
        for (at, child) in element.children.iter().enumerate() {
            // SIPp looks at the first element inside a command only.
            if at > 0 || child.name != "action" {
                let text = match child.name.as_str() {
                    "action" => format!(
                        "<action> that is not the first element inside <{}> is passed over, as SIPp does",
                        element.name
                    ),
                    name => format!(
                        "<{name}> inside <{}> without <action> is passed over, as SIPp does",
                        element.name
                    ),
                };
                self.warnings.push(Mistake::new(child.line, text));
                continue;
            }
            Attributes::of(child).none(&mut self.warnings)?;
            for action in &child.children {
                actions.push(act::compile(self, action)?);
            }
        }
        Ok(actions)
    }

    fn push(&mut self, element: &Element, mut step: Step, jumps: Jumps) -> Result<(), Mistake> {
        debug_assert_eq!(step.line, element.line);
        if step.label.is_empty() {
            step.label = label(&step.kind);
        }
        self.program.steps.push(step);
        self.jumps.push(jumps);
        Ok(())
    }

    fn send(&mut self, mut attributes: Attributes<'_>) -> Result<(), Mistake> {
        let element = attributes.element;
        let (mut step, jumps) = self.common(&mut attributes)?;
        let retransmit = attributes.number::<u64>("retrans")?;
        let timeout = attributes.number::<u64>("timeout")?;
        let lost = percent(&mut attributes)?;
        let start = self.transaction(&mut attributes, "start_txn")?;
        let ack = self.transaction(&mut attributes, "ack_txn")?;
        attributes.none(&mut self.warnings)?;
        let source = bytes(&element.text);
        let text = template::message(&source, self.names)
            .map_err(|text| Mistake::new(element.text_line, format!("<send>: {text}")))?;
        let first = first_word(&text);
        let request = first.as_deref() != Some(b"SIP/2.0");
        let method = match (&first, request) {
            (Some(word), true) => Some(self.method(element, word)?),
            _ => None,
        };
        self.any_method |= request && method.is_none();
        step.kind = Kind::Send(Box::new(Send {
            ack: first.as_deref() == Some(b"ACK"),
            text,
            method,
            request,
            retransmit: retransmit
                .filter(|milliseconds| *milliseconds > 0)
                .map(Duration::from_millis),
            timeout: timeout
                .filter(|milliseconds| *milliseconds > 0)
                .map(Duration::from_millis),
            lost,
            start_transaction: start,
            ack_transaction: ack,
        }));
        self.push(element, step, jumps)
    }

    fn method(&mut self, element: &Element, word: &[u8]) -> Result<u8, Mistake> {
        let methods = &mut self.program.methods;
        if let Some(at) = methods.iter().position(|known| known == word) {
            return Ok(at as u8);
        }
        // The last bit stands for methods that only show when the message is written.
        if methods.len() >= 63 {
            return Err(Mistake::new(element.line, "more than 63 methods"));
        }
        methods.push(word.to_vec());
        Ok((methods.len() - 1) as u8)
    }

    fn transaction(
        &mut self,
        attributes: &mut Attributes<'_>,
        name: &str,
    ) -> Result<Option<u8>, Mistake> {
        let Some(name) = attributes.take(name) else {
            return Ok(None);
        };
        numbered(&mut self.program.transactions, name, 100)
            .map(|number| Some(number as u8))
            .ok_or_else(|| attributes.wrong("more than 100 transactions"))
    }

    fn receive(&mut self, mut attributes: Attributes<'_>) -> Result<(), Mistake> {
        let element = attributes.element;
        let (mut step, mut jumps) = self.common(&mut attributes)?;
        let pattern = attributes.flag("regexp_match")?.unwrap_or(false);
        let status = match attributes.take("response") {
            None => None,
            Some(status) => Some(
                status
                    .trim()
                    .parse::<u16>()
                    .map_err(|_| attributes.wrong("response wants a status"))?,
            ),
        };
        let expected = match (status, attributes.take("request")) {
            (Some(status), None) => Expected::Status(status),
            (None, Some(method)) if pattern => Expected::Methods(
                // The whole method, as SIPp tests it from its beginning.
                ere::compile(method).map_err(|text| attributes.wrong(text))?,
            ),
            (None, Some(method)) => Expected::Method(method.trim().as_bytes().to_vec()),
            (Some(status), Some(method)) => {
                Expected::Either(status, method.trim().as_bytes().to_vec())
            }
            (None, None) => {
                self.warnings.push(attributes.wrong(
                    "neither response nor request: it waits for a message that never comes, as with SIPp",
                ));
                Expected::Nothing
            }
        };
        let optional = match attributes.take("optional") {
            None | Some("false") => Optional::No,
            Some("true") => Optional::Yes,
            Some("global") => Optional::Global,
            Some(other) => {
                return Err(attributes.wrong(format!("optional={other:?} is not supported")));
            }
        };
        let advances = attributes.flag("advance_state")?.unwrap_or(true);
        if !advances && optional == Optional::No {
            return Err(attributes.wrong("advance_state=\"false\" is for optional messages"));
        }
        jumps.on_timeout = attributes.take("ontimeout").map(str::to_owned);
        let receive = Receive {
            expected,
            optional,
            methods: match self.any_method {
                true => 0,
                false => (1 << self.program.methods.len()) - 1,
            },
            transaction: self.transaction(&mut attributes, "response_txn")?,
            challenge: attributes.flag("auth")?.unwrap_or(false),
            routes: attributes.flag("rrs")?.unwrap_or(false),
            lost: percent(&mut attributes)?,
            timeout: attributes
                .number("timeout")?
                .filter(|milliseconds| *milliseconds > 0)
                .map(Duration::from_millis),
            on_timeout: None,
            ignores_media: attributes.flag("ignoresdp")?.unwrap_or(false),
            advances,
        };
        attributes.none(&mut self.warnings)?;
        step.kind = Kind::Receive(Box::new(receive));
        self.push(element, step, jumps)
    }

    fn pause(&mut self, mut attributes: Attributes<'_>, linger: bool) -> Result<(), Mistake> {
        let element = attributes.element;
        let (mut step, jumps) = self.common(&mut attributes)?;
        // A distribution's percentile is not judged; what is drawn is bounded instead.
        attributes.flag("sanity_check")?;
        let length = if let Some(name) = attributes.take("variable") {
            Length::Variable(self.variable(element, name)?)
        } else if let Some(kind) = named_distribution(&mut attributes) {
            Length::Drawn(distribution_of(kind, &mut attributes)?)
        } else if let Some(milliseconds) = attributes.number::<f64>("milliseconds")? {
            Length::Drawn(Distribution::Fixed(milliseconds))
        } else if let (Some(min), Some(max)) =
            (attributes.number("min")?, attributes.number("max")?)
        {
            Length::Drawn(Distribution::Uniform { min, max })
        } else {
            Length::Default
        };
        attributes.none(&mut self.warnings)?;
        if let Length::Drawn(drawn) = &length
            && !drawn.is_sound()
        {
            let text = format!("<{}>: impossible parameters", element.name);
            return Err(Mistake::new(element.line, text));
        }
        step.kind = Kind::Pause { length, linger };
        self.push(element, step, jumps)
    }

    /// Labels to steps.
    fn link(&mut self) {
        self.link_steps();
        self.program.unexpected = self.labels.get("_unexp.main").copied();
        if self.program.unexpected.is_some() {
            match self.names.variable("_unexp.retaddr") {
                Ok(variable) => self.program.return_address = Some(variable),
                Err(text) => self.mistakes.push(Mistake::new(1, text)),
            }
        }
        let known = &self.names.variables;
        self.program.pause_address = known
            .iter()
            .position(|(name, _)| name == "_unexp.pausedaddr")
            .map(|at| at as u16);
    }

    fn link_steps(&mut self) {
        for (step, jumps) in self.program.steps.iter_mut().zip(&self.jumps) {
            let mut find = |name: &Option<String>| {
                let name = name.as_ref()?;
                let found = self.labels.get(name).copied();
                if found.is_none() {
                    let text = format!("there is no label {name}");
                    self.mistakes.push(Mistake::new(step.line, text));
                }
                found
            };
            step.next = find(&jumps.next);
            let on_timeout = find(&jumps.on_timeout);
            if let Kind::Receive(receive) = &mut step.kind {
                receive.on_timeout = on_timeout;
            }
        }
    }
}

/// The distribution of a pause: by its attribute, or by one that is called after it, as old scenarios have it.
fn named_distribution<'e>(attributes: &mut Attributes<'e>) -> Option<&'e str> {
    const NAMES: [&str; 6] = [
        "normal",
        "exponential",
        "lognormal",
        "weibull",
        "pareto",
        "gamma",
    ];
    if let Some(kind) = attributes.take("distribution") {
        return Some(kind);
    }
    NAMES
        .into_iter()
        .find(|name| attributes.take(name).is_some())
}

/// A distribution's parameters.
pub(super) fn distribution(attributes: &mut Attributes<'_>) -> Result<Distribution, Mistake> {
    let kind = attributes.need("distribution")?;
    distribution_of(kind, attributes)
}

fn distribution_of(kind: &str, attributes: &mut Attributes<'_>) -> Result<Distribution, Mistake> {
    let mut number = |name: &str| -> Result<f64, Mistake> {
        match attributes.number(name)? {
            Some(value) => Ok(value),
            None => Err(attributes.wrong(format!("distribution {kind} wants {name}"))),
        }
    };
    let drawn = match kind {
        "fixed" => Distribution::Fixed(number("value")?),
        "uniform" => Distribution::Uniform {
            min: number("min")?,
            max: number("max")?,
        },
        "normal" => Distribution::Normal {
            mean: number("mean")?,
            stdev: number("stdev")?,
        },
        "lognormal" => Distribution::LogNormal {
            mean: number("mean")?,
            stdev: number("stdev")?,
        },
        "exponential" => Distribution::Exponential {
            mean: number("mean")?,
        },
        "weibull" => Distribution::Weibull {
            lambda: number("lambda")?,
            k: number("k")?,
        },
        "pareto" => Distribution::Pareto {
            k: number("k")?,
            x_m: number("x_m")?,
        },
        "gpareto" => Distribution::GeneralizedPareto {
            shape: number("shape")?,
            scale: number("scale")?,
            location: number("location")?,
        },
        "gamma" => Distribution::Gamma {
            k: number("k")?,
            theta: number("theta")?,
        },
        "negbin" => Distribution::NegativeBinomial {
            p: number("p")?,
            n: number("n")?,
        },
        other => {
            return Err(attributes.wrong(format!("the distribution {other} is not supported")));
        }
    };
    match drawn.is_sound() {
        true => Ok(drawn),
        false => Err(attributes.wrong("impossible parameters")),
    }
}

fn percent(attributes: &mut Attributes<'_>) -> Result<f64, Mistake> {
    let lost = attributes.number::<f64>("lost")?.unwrap_or(0.0);
    match (0.0..=100.0).contains(&lost) {
        true => Ok(lost),
        false => Err(attributes.wrong("lost is from 0 to 100")),
    }
}

/// Edges of classes; words that are no numbers are passed over, as SIPp does.
fn classes(
    attributes: &mut Attributes<'_>,
    name: &str,
    warnings: &mut Vec<Mistake>,
) -> Result<Vec<u64>, Mistake> {
    let mut edges = Vec::new();
    for word in list(attributes.need(name)?) {
        match word.parse() {
            Ok(edge) => edges.push(edge),
            Err(_) => {
                warnings.push(attributes.wrong(format!("{word:?} is no number: passed over")))
            }
        }
    }
    edges.sort_unstable();
    edges.dedup();
    Ok(edges)
}

/// Words between commas.
pub(super) fn list(text: &str) -> Vec<String> {
    text.split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}

/// The number of a name in a table of at most `limit`.
fn numbered(table: &mut Vec<String>, name: &str, limit: usize) -> Option<u16> {
    if let Some(at) = table.iter().position(|known| known == name) {
        return Some(at as u16);
    }
    if table.len() >= limit {
        return None;
    }
    table.push(name.to_owned());
    Some((table.len() - 1) as u16)
}

/// The first word of a message, where the text says it itself.
fn first_word(text: &Text) -> Option<Vec<u8>> {
    let template::Piece::Text(start) = text.head.first()? else {
        return None;
    };
    let end = start.iter().position(|byte| matches!(byte, b' ' | b'\r'))?;
    start.get(..end).map(<[u8]>::to_vec)
}

/// What to show for a step.
fn label(kind: &Kind) -> String {
    match kind {
        Kind::Send(send) => {
            let line = match send.text.head.first() {
                Some(template::Piece::Text(text)) => String::from_utf8_lossy(text).into_owned(),
                _ => "?".to_owned(),
            };
            let mut words = line.split_whitespace();
            match words.next() {
                Some("SIP/2.0") => words.next().unwrap_or("?").to_owned(),
                word => word.unwrap_or("?").to_owned(),
            }
        }
        Kind::Receive(receive) => match &receive.expected {
            Expected::Status(status) => status.to_string(),
            Expected::Method(method) => String::from_utf8_lossy(method).into_owned(),
            Expected::Methods(regex) => regex.as_str().to_owned(),
            Expected::Either(status, method) => {
                format!("{status}/{}", String::from_utf8_lossy(method))
            }
            Expected::Nothing => "nothing".to_owned(),
        },
        Kind::Pause { linger: true, .. } => "timewait".to_owned(),
        Kind::Pause { .. } => "pause".to_owned(),
        Kind::Nothing => "nop".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sipp::xml;

    fn program(steps: &str) -> Result<Program, Vec<Mistake>> {
        let file = format!("<scenario name=\"x\">\n{steps}\n</scenario>\ngarbage");
        let root = xml::read(file.as_bytes()).map_err(|mistake| vec![mistake])?;
        compile(&root, &mut Names::default())
    }

    /// Each was put before SIPp 3.6.1, which runs it.
    #[test]
    fn what_sipp_passes_over_runs_with_a_warning() {
        for (steps, warnings) in [
            ("<recv response=\"200\" id=\"1\" occurence=\"1\"/>", 2),
            (
                "<recv request=\"INVITE\"><ereg regexp=\"a\" search_in=\"msg\"/></recv>",
                1,
            ),
            ("<User variables=\"a\"/><recv request=\"INVITE\"/>", 1),
            ("<nop/><ResponseTimeRepartition value=\"a, 10\"/>", 1),
            (
                "<recv request=\"ACK\" timeout=\"\" rrs=\"\" auth=\"2\" crlf=\"yes\"/>",
                0,
            ),
            (
                "<nop><action><test assign_to=\"1\" variable=\"1\" compare=\"equal\" value=\"\"/>\
                 <strcmp assign_to=\"1\" variable=\"1\" variable2=\"1\"/>\
                 <ereg regexp=\"a\" search_in=\"hdr\" header=\"X:\" occurence=\"2\" assign_to=\"1\"/></action></nop>",
                0,
            ),
        ] {
            let program = program(steps).unwrap_or_else(|error| panic!("{steps}: {error:?}"));
            assert_eq!(
                program.warnings.len(),
                warnings,
                "{steps}: {:?}",
                program.warnings
            );
        }
    }

    #[test]
    fn what_would_change_the_scenario_is_refused() {
        for steps in [
            "<recv response=\"200\" advance_state=\"false\"/>",
            "<init><recv response=\"200\"/></init><nop/>",
            "<recv response=\"2xx\"/>",
            "<sendCmd/>",
            "<nop><action><foo/></action></nop>",
        ] {
            assert!(program(steps).is_err(), "{steps}");
        }
    }
}
