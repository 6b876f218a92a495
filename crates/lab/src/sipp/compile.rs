//! Compiles the XML of a scenario to its program. Unsupported elements are rejected by name, all of them in one pass.

use super::act;
use super::distribution::Distribution;
use super::ere;
use super::program::{
    ExpectedMessage, Optional, PauseLength, ReceiveStep, ScenarioProgram, ScenarioStep, Scope,
    SendStep, StepKind,
};
use super::template::{self, NameTable, TextTemplate};
use super::xml::{Element, ScenarioError, bytes};
use std::collections::BTreeMap;
use std::time::Duration;

/// Most steps of a scenario.
const MAX_STEPS: usize = 10_000;
/// Most errors reported at a time.
const MAX_ERRORS: usize = 50;

/// The attributes of an element; [`ElementAttributes::finish`] reports unused ones.
pub(super) struct ElementAttributes<'e> {
    pub(super) element: &'e Element,
    left: Vec<&'e (String, String)>,
}

impl<'e> ElementAttributes<'e> {
    pub(super) fn of(element: &'e Element) -> ElementAttributes<'e> {
        ElementAttributes {
            element,
            left: element.attributes.iter().collect(),
        }
    }

    pub(super) fn take(&mut self, name: &str) -> Option<&'e str> {
        let at = self.left.iter().position(|(known, _)| known == name)?;
        Some(self.left.remove(at).1.as_str())
    }

    pub(super) fn wrong(&self, text: impl std::fmt::Display) -> ScenarioError {
        ScenarioError::new(
            self.element.line,
            format!("<{}>: {text}", self.element.name),
        )
    }

    pub(super) fn require(&mut self, name: &str) -> Result<&'e str, ScenarioError> {
        self.take(name)
            .ok_or_else(|| self.wrong(format!("the attribute {name} is missing")))
    }

    pub(super) fn number<N: std::str::FromStr>(
        &mut self,
        name: &str,
    ) -> Result<Option<N>, ScenarioError> {
        match self.take(name) {
            None => Ok(None),
            // An empty value is zero, as in SIPp.
            Some(text) => match (if text.trim().is_empty() {
                "0"
            } else {
                text.trim()
            })
            .parse()
            {
                Ok(number) => Ok(Some(number)),
                Err(_) => Err(self.wrong(format!("{name}={text:?} is not a valid number"))),
            },
        }
    }

    pub(super) fn flag(&mut self, name: &str) -> Result<Option<bool>, ScenarioError> {
        let Some(text) = self.take(name).map(str::trim) else {
            return Ok(None);
        };
        // The case does not matter, and any number except zero is true, as in SIPp.
        match text.to_ascii_lowercase().as_str() {
            "true" | "1" | "yes" => Ok(Some(true)),
            "false" | "0" | "no" | "" => Ok(Some(false)),
            word if word.parse::<i64>().is_ok() => Ok(Some(true)),
            _ => Err(self.wrong(format!("{name}={text:?} is neither true nor false"))),
        }
    }

    /// Warns about unused attributes, which SIPp ignores.
    pub(super) fn finish(self, warnings: &mut Vec<ScenarioError>) -> Result<(), ScenarioError> {
        for (name, value) in &self.left {
            warnings.push(self.wrong(format!(
                "the attribute {name}={value:?} is ignored, as in SIPp"
            )));
        }
        Ok(())
    }
}

/// Labels of jumps, by name until all steps are compiled.
#[derive(Clone, Debug, Default)]
struct Jumps {
    next: Option<String>,
    on_timeout: Option<String>,
}

pub(super) struct Compiler<'n> {
    pub(super) program: ScenarioProgram,
    pub(super) names: &'n mut NameTable,
    jumps: Vec<Jumps>,
    labels: BTreeMap<String, u16>,
    errors: Vec<ScenarioError>,
    /// Elements and attributes that are ignored, as in SIPp.
    pub(super) warnings: Vec<ScenarioError>,
    /// Whether a request is sent whose method is determined at run time.
    any_method: bool,
    /// `hiderest`: steps are omitted from the table by default.
    hides: bool,
    /// Whether the last step waits for an optional message only.
    after_optional: bool,
}

/// Compiles a scenario. `names` contains the keywords and files of the command line, and collects the variables.
///
/// # Errors
/// All errors, in order of their lines.
pub fn compile(
    root: &Element,
    names: &mut NameTable,
) -> Result<ScenarioProgram, Vec<ScenarioError>> {
    let mut compiler = Compiler {
        program: ScenarioProgram::default(),
        names,
        jumps: Vec::new(),
        labels: BTreeMap::new(),
        errors: Vec::new(),
        warnings: Vec::new(),
        any_method: false,
        hides: false,
        after_optional: false,
    };
    if root.name != "scenario" {
        let text = format!("<{}> instead of <scenario>", root.name);
        return Err(vec![ScenarioError::new(root.line, text)]);
    }
    compiler.scenario(root);
    if compiler.errors.is_empty() {
        compiler.link();
    }
    if compiler.errors.is_empty() {
        let mut program = compiler.program;
        program.variables = compiler.names.variables.clone();
        program.warnings = compiler.warnings;
        program
            .warnings
            .extend(compiler.names.used_once().map(|name| {
                let text =
                    format!("the variable {name} is named only once: is it right? SIPp refuses it");
                ScenarioError::new(root.line, text)
            }));
        program.warnings.sort_by_key(|warning| warning.line);
        super::survey::survey(&mut program);
        return Ok(program);
    }
    let mut errors = compiler.errors;
    errors.sort_by_key(|error| error.line);
    errors.truncate(MAX_ERRORS);
    Err(errors)
}

impl Compiler<'_> {
    fn scenario(&mut self, root: &Element) {
        let mut attributes = ElementAttributes::of(root);
        self.program.name = attributes.take("name").unwrap_or("scenario").to_owned();
        if let Err(error) = attributes.finish(&mut self.warnings) {
            self.errors.push(error);
        }
        for child in &root.children {
            if self.program.steps.len() >= MAX_STEPS {
                let text = format!("more than {MAX_STEPS} steps");
                self.errors.push(ScenarioError::new(child.line, text));
                return;
            }
            if let Err(error) = self.command(child) {
                self.errors.push(error);
            }
        }
        if self.program.steps.is_empty() && self.errors.is_empty() {
            let text = "a scenario without send, recv, pause or nop";
            self.errors.push(ScenarioError::new(root.line, text));
        }
    }

    fn command(&mut self, element: &Element) -> Result<(), ScenarioError> {
        let mut attributes = ElementAttributes::of(element);
        // SIPp refuses it, too: nothing would lead a call from the optional message to the step.
        if matches!(element.name.as_str(), "send" | "pause" | "timewait" | "nop")
            && std::mem::take(&mut self.after_optional)
        {
            return Err(attributes.wrong(
                "a required <recv> is missing before it: remove optional=\"true\" from the last <recv>",
            ));
        }
        match element.name.as_str() {
            "send" => self.send(attributes),
            "recv" => self.receive(attributes),
            "pause" => self.pause(attributes, false),
            "timewait" => self.pause(attributes, true),
            "nop" => {
                let (step, jumps) = self.common(&mut attributes)?;
                attributes.finish(&mut self.warnings)?;
                self.push(element, step, jumps)
            }
            "label" => {
                let name = attributes.require("id")?.to_owned();
                let here = self.program.steps.len() as u16;
                if self.labels.insert(name.clone(), here).is_some() {
                    return Err(attributes.wrong(format!("the label {name} is defined twice")));
                }
                attributes.finish(&mut self.warnings)
            }
            "ResponseTimeRepartition" => {
                self.program.response_classes =
                    classes(&mut attributes, "value", &mut self.warnings)?;
                attributes.finish(&mut self.warnings)
            }
            "CallLengthRepartition" => {
                self.program.length_classes =
                    classes(&mut attributes, "value", &mut self.warnings)?;
                attributes.finish(&mut self.warnings)
            }
            // SIPp's own tests use this element; SIPp ignores it.
            "response-time" => {
                self.program.response_classes =
                    classes(&mut attributes, "repartition", &mut self.warnings)?;
                attributes.finish(&mut self.warnings)
            }
            "Global" => self.declare(attributes, Scope::Global),
            "User" => self.declare(attributes, Scope::User),
            "init" => self.init(element),
            "DefaultMessage" => {
                let id = attributes.require("id")?.to_owned();
                self.warnings.push(attributes.wrong(format!(
                    "the message {id} is ignored: messages without a step have a fixed form here"
                )));
                attributes.finish(&mut self.warnings)
            }
            "Reference" => {
                for name in list(attributes.require("variables")?) {
                    let number = self.variable(element, &name)?;
                    self.names.count_use(usize::from(number));
                }
                attributes.finish(&mut self.warnings)
            }
            name => Err(ScenarioError::new(
                element.line,
                format!("<{name}> is not supported"),
            )),
        }
    }

    fn declare(
        &mut self,
        mut attributes: ElementAttributes<'_>,
        scope: Scope,
    ) -> Result<(), ScenarioError> {
        // Without users each call has its own copy, as in SIPp.
        let scope = match scope {
            Scope::User if !self.names.users => {
                self.warnings.push(attributes.wrong(
                    "there are no users (--users N): each call has its own copy of these variables",
                ));
                Scope::Call
            }
            scope => scope,
        };
        for name in list(attributes.require("variables")?) {
            let number = self.variable(attributes.element, &name)?;
            if let Some(entry) = self.names.variables.get_mut(usize::from(number)) {
                entry.1 = scope;
            }
            self.names.count_use(usize::from(number));
        }
        attributes.finish(&mut self.warnings)
    }

    pub(super) fn variable(&mut self, element: &Element, name: &str) -> Result<u16, ScenarioError> {
        let name = name.trim();
        let name = name.strip_prefix('$').unwrap_or(name);
        self.names
            .variable(name)
            .map_err(|text| ScenarioError::new(element.line, text))
    }

    pub(super) fn text(
        &mut self,
        element: &Element,
        source: &str,
    ) -> Result<TextTemplate, ScenarioError> {
        template::text(&bytes(source), self.names)
            .map_err(|text| ScenarioError::new(element.line, format!("<{}>: {text}", element.name)))
    }

    /// Attributes of all commands.
    fn common(
        &mut self,
        attributes: &mut ElementAttributes<'_>,
    ) -> Result<(ScenarioStep, Jumps), ScenarioError> {
        let element = attributes.element;
        let mut test = None;
        if let Some(name) = attributes.take("test").filter(|name| !name.is_empty()) {
            test = Some(self.variable(element, name)?);
        }
        let chance = attributes.number::<f64>("chance")?.unwrap_or(1.0);
        if !(0.0..=1.0).contains(&chance) {
            return Err(attributes.wrong("chance: expected 0 to 1"));
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
        let step = ScenarioStep {
            line: element.line,
            kind: StepKind::Nothing,
            label: attributes.take("display").unwrap_or_default().to_owned(),
            next: None,
            test,
            chance,
            condition,
            starts,
            stops,
            repeats: attributes.flag("repeat_rtd")?.unwrap_or(false),
            counter,
            // SIPp tests only for its presence.
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

    fn hidden(&mut self, attributes: &mut ElementAttributes<'_>) -> Result<bool, ScenarioError> {
        if let Some(rest) = attributes.flag("hiderest")? {
            self.hides = rest;
        }
        Ok(attributes.flag("hide")?.unwrap_or(self.hides))
    }

    /// `<init>`: its own `<nop>`s and labels, executed once before the first call.
    fn init(&mut self, element: &Element) -> Result<(), ScenarioError> {
        ElementAttributes::of(element).finish(&mut self.warnings)?;
        let (steps, jumps) = (
            std::mem::take(&mut self.program.steps),
            std::mem::take(&mut self.jumps),
        );
        let labels = std::mem::take(&mut self.labels);
        let after_optional = std::mem::take(&mut self.after_optional);
        for child in &element.children {
            let done = match child.name.as_str() {
                "nop" | "label" => self.command(child),
                name => Err(ScenarioError::new(
                    child.line,
                    format!("<{name}> inside <init>: only <nop> and <label> are allowed"),
                )),
            };
            if let Err(error) = done {
                self.errors.push(error);
            }
        }
        self.link_steps();
        self.program.init.append(&mut self.program.steps);
        self.program.steps = steps;
        self.jumps = jumps;
        self.labels = labels;
        self.after_optional = after_optional;
        Ok(())
    }

    fn timers(
        &mut self,
        attributes: &mut ElementAttributes<'_>,
        name: &str,
    ) -> Result<u64, ScenarioError> {
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

    fn actions(
        &mut self,
        element: &Element,
    ) -> Result<Vec<super::program::ScenarioAction>, ScenarioError> {
        let mut actions = Vec::new();
        for (at, child) in element.children.iter().enumerate() {
            // SIPp examines only the first element inside a command.
            if at > 0 || child.name != "action" {
                let text = match child.name.as_str() {
                    "action" => format!(
                        "<action> that is not the first element inside <{}> is ignored, as in SIPp",
                        element.name
                    ),
                    name => format!(
                        "<{name}> inside <{}> without <action> is ignored, as in SIPp",
                        element.name
                    ),
                };
                self.warnings.push(ScenarioError::new(child.line, text));
                continue;
            }
            ElementAttributes::of(child).finish(&mut self.warnings)?;
            for action in &child.children {
                actions.push(act::compile(self, action)?);
            }
        }
        Ok(actions)
    }

    fn push(
        &mut self,
        element: &Element,
        mut step: ScenarioStep,
        jumps: Jumps,
    ) -> Result<(), ScenarioError> {
        debug_assert_eq!(step.line, element.line);
        if step.label.is_empty() {
            step.label = label(&step.kind);
        }
        self.program.steps.push(step);
        self.jumps.push(jumps);
        Ok(())
    }

    fn send(&mut self, mut attributes: ElementAttributes<'_>) -> Result<(), ScenarioError> {
        let element = attributes.element;
        let (mut step, mut jumps) = self.common(&mut attributes)?;
        let retransmit = attributes.number::<u64>("retrans")?;
        let timeout = attributes.number::<u64>("timeout")?;
        let lost = percent(&mut attributes)?;
        let start = self.transaction(&mut attributes, "start_txn")?;
        let ack = self.transaction(&mut attributes, "ack_txn")?;
        jumps.on_timeout = attributes.take("ontimeout").map(str::to_owned);
        attributes.finish(&mut self.warnings)?;
        let source = bytes(&element.text);
        let text = template::message(&source, self.names)
            .map_err(|text| ScenarioError::new(element.text_line, format!("<send>: {text}")))?;
        let first = first_word(&text);
        let request = first.as_deref() != Some(b"SIP/2.0");
        let method = match (&first, request) {
            (Some(word), true) => Some(self.method(element, word)?),
            _ => None,
        };
        self.any_method |= request && method.is_none();
        step.kind = StepKind::Send(Box::new(SendStep {
            ack: first.as_deref() == Some(b"ACK"),
            raises_cseq: request && !matches!(first.as_deref(), Some(b"ACK" | b"CANCEL")),
            text,
            method,
            retransmit: retransmit
                .filter(|milliseconds| *milliseconds > 0)
                .map(Duration::from_millis),
            timeout: timeout
                .filter(|milliseconds| *milliseconds > 0)
                .map(Duration::from_millis),
            on_timeout: None,
            lost,
            start_transaction: start,
            ack_transaction: ack,
        }));
        self.push(element, step, jumps)
    }

    fn method(&mut self, element: &Element, word: &[u8]) -> Result<u8, ScenarioError> {
        let methods = &mut self.program.methods;
        if let Some(at) = methods.iter().position(|known| known == word) {
            return Ok(at as u8);
        }
        // The last bit represents methods that are determined at run time.
        if methods.len() >= 63 {
            return Err(ScenarioError::new(element.line, "more than 63 methods"));
        }
        methods.push(word.to_vec());
        Ok((methods.len() - 1) as u8)
    }

    fn transaction(
        &mut self,
        attributes: &mut ElementAttributes<'_>,
        name: &str,
    ) -> Result<Option<u8>, ScenarioError> {
        let Some(name) = attributes.take(name) else {
            return Ok(None);
        };
        numbered(&mut self.program.transactions, name, 100)
            .map(|number| Some(number as u8))
            .ok_or_else(|| attributes.wrong("more than 100 transactions"))
    }

    fn receive(&mut self, mut attributes: ElementAttributes<'_>) -> Result<(), ScenarioError> {
        let element = attributes.element;
        let (mut step, mut jumps) = self.common(&mut attributes)?;
        let pattern = attributes.flag("regexp_match")?.unwrap_or(false);
        let status = match attributes.take("response") {
            None => None,
            Some(status) => Some(
                status
                    .trim()
                    .parse::<u16>()
                    .map_err(|_| attributes.wrong("response: expected a status code"))?,
            ),
        };
        let expected = match (status, attributes.take("request")) {
            (Some(status), None) => ExpectedMessage::Status(status),
            (None, Some(method)) if pattern => ExpectedMessage::Methods(
                // Anywhere in the method, as in SIPp.
                ere::compile(method).map_err(|text| attributes.wrong(text))?,
            ),
            (None, Some(method)) => ExpectedMessage::Method(method.trim().as_bytes().to_vec()),
            (Some(status), Some(method)) => {
                ExpectedMessage::Either(status, method.trim().as_bytes().to_vec())
            }
            (None, None) => {
                self.warnings.push(attributes.wrong(
                    "neither response nor request: no message matches this step, as in SIPp",
                ));
                ExpectedMessage::Nothing
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
            return Err(
                attributes.wrong("advance_state=\"false\" is only possible for optional messages")
            );
        }
        jumps.on_timeout = attributes.take("ontimeout").map(str::to_owned);
        let receive = ReceiveStep {
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
        attributes.finish(&mut self.warnings)?;
        self.after_optional = receive.optional != Optional::No;
        step.kind = StepKind::Receive(Box::new(receive));
        self.push(element, step, jumps)
    }

    fn pause(
        &mut self,
        mut attributes: ElementAttributes<'_>,
        linger: bool,
    ) -> Result<(), ScenarioError> {
        let element = attributes.element;
        let (mut step, jumps) = self.common(&mut attributes)?;
        // The percentile of a distribution is not checked; values are bounded instead.
        attributes.flag("sanity_check")?;
        let length = if let Some(name) = attributes.take("variable") {
            PauseLength::Variable(self.variable(element, name)?)
        } else if let Some(kind) = named_distribution(&mut attributes) {
            PauseLength::Drawn(distribution_of(kind, &mut attributes)?)
        } else {
            // Bounds have precedence over a length, as in SIPp.
            match (attributes.number("min")?, attributes.number("max")?) {
                (Some(min), Some(max)) => PauseLength::Drawn(Distribution::Uniform { min, max }),
                (None, None) => match attributes.number::<f64>("milliseconds")? {
                    Some(milliseconds) => PauseLength::Drawn(Distribution::Fixed(milliseconds)),
                    None => PauseLength::Default,
                },
                _ => return Err(attributes.wrong("min and max are both required")),
            }
        };
        attributes.finish(&mut self.warnings)?;
        if let PauseLength::Drawn(drawn) = &length
            && !drawn.is_sound()
        {
            let text = format!("<{}>: invalid parameters", element.name);
            return Err(ScenarioError::new(element.line, text));
        }
        step.kind = StepKind::Pause { length, linger };
        self.push(element, step, jumps)
    }

    /// Resolves labels to steps.
    fn link(&mut self) {
        self.link_steps();
        self.program.unexpected = self.labels.get("_unexp.main").copied();
        if self.program.unexpected.is_some() {
            match self.names.variable("_unexp.retaddr") {
                Ok(variable) => self.program.return_address = Some(variable),
                Err(text) => self.errors.push(ScenarioError::new(1, text)),
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
                    self.errors.push(ScenarioError::new(step.line, text));
                }
                found
            };
            step.next = find(&jumps.next);
            let on_timeout = find(&jumps.on_timeout);
            match &mut step.kind {
                StepKind::Receive(receive) => receive.on_timeout = on_timeout,
                StepKind::Send(send) => send.on_timeout = on_timeout,
                _ => {}
            }
        }
    }
}

/// The distribution of a pause: by its attribute, or by an attribute with its name, as in old scenarios.
fn named_distribution<'e>(attributes: &mut ElementAttributes<'e>) -> Option<&'e str> {
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

/// The parameters of a distribution.
pub(super) fn distribution(
    attributes: &mut ElementAttributes<'_>,
) -> Result<Distribution, ScenarioError> {
    let kind = attributes.require("distribution")?;
    distribution_of(kind, attributes)
}

fn distribution_of(
    kind: &str,
    attributes: &mut ElementAttributes<'_>,
) -> Result<Distribution, ScenarioError> {
    let mut number = |name: &str| -> Result<f64, ScenarioError> {
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
        false => Err(attributes.wrong("invalid parameters")),
    }
}

fn percent(attributes: &mut ElementAttributes<'_>) -> Result<Option<f64>, ScenarioError> {
    let lost = attributes.number::<f64>("lost")?;
    match lost.is_none_or(|lost| (0.0..=100.0).contains(&lost)) {
        true => Ok(lost),
        false => Err(attributes.wrong("lost: expected 0 to 100")),
    }
}

/// Edges of classes; words that are no numbers are ignored, as in SIPp.
fn classes(
    attributes: &mut ElementAttributes<'_>,
    name: &str,
    warnings: &mut Vec<ScenarioError>,
) -> Result<Vec<u64>, ScenarioError> {
    let mut edges = Vec::new();
    for word in list(attributes.require(name)?) {
        match word.parse() {
            Ok(edge) => edges.push(edge),
            Err(_) => warnings.push(attributes.wrong(format!("{word:?} is not a number: ignored"))),
        }
    }
    edges.sort_unstable();
    edges.dedup();
    Ok(edges)
}

/// Splits words at commas.
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

/// The first word of a message, if it is constant.
fn first_word(text: &TextTemplate) -> Option<Vec<u8>> {
    let template::TextPiece::Text(start) = text.head.first()? else {
        return None;
    };
    let end = start.iter().position(|byte| matches!(byte, b' ' | b'\r'))?;
    start.get(..end).map(<[u8]>::to_vec)
}

/// The label of a step in tables.
fn label(kind: &StepKind) -> String {
    match kind {
        StepKind::Send(send) => {
            let line = match send.text.head.first() {
                Some(template::TextPiece::Text(text)) => String::from_utf8_lossy(text).into_owned(),
                _ => "?".to_owned(),
            };
            let mut words = line.split_whitespace();
            match words.next() {
                Some("SIP/2.0") => words.next().unwrap_or("?").to_owned(),
                word => word.unwrap_or("?").to_owned(),
            }
        }
        StepKind::Receive(receive) => match &receive.expected {
            ExpectedMessage::Status(status) => status.to_string(),
            ExpectedMessage::Method(method) => String::from_utf8_lossy(method).into_owned(),
            ExpectedMessage::Methods(regex) => regex.as_str().to_owned(),
            ExpectedMessage::Either(status, method) => {
                format!("{status}/{}", String::from_utf8_lossy(method))
            }
            ExpectedMessage::Nothing => "nothing".to_owned(),
        },
        StepKind::Pause { linger: true, .. } => "timewait".to_owned(),
        StepKind::Pause { .. } => "pause".to_owned(),
        StepKind::Nothing => "nop".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sipp::xml;

    fn program(steps: &str) -> Result<ScenarioProgram, Vec<ScenarioError>> {
        let file = format!("<scenario name=\"x\">\n{steps}\n</scenario>\ngarbage");
        let root = xml::read(file.as_bytes()).map_err(|error| vec![error])?;
        compile(&root, &mut NameTable::default())
    }

    /// SIPp 3.6.1 runs them, except those with variables that are named once.
    #[test]
    fn parts_ignored_by_sipp_run_with_a_warning() {
        for (steps, warnings) in [
            ("<recv response=\"200\" id=\"1\" occurence=\"1\"/>", 2),
            (
                "<recv request=\"INVITE\"><ereg regexp=\"a\" search_in=\"msg\"/></recv>",
                1,
            ),
            ("<User variables=\"a\"/><recv request=\"INVITE\"/>", 1),
            ("<nop/><ResponseTimeRepartition value=\"a, 10\"/>", 1),
            (
                "<Global variables=\"a\"/><Reference variables=\"b\"/><nop/>",
                0,
            ),
            (
                "<nop><action><assignstr assign_to=\"number\" value=\"1\"/><log message=\"[$numbr]\"/></action></nop>",
                2,
            ),
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
    fn parts_that_change_the_scenario_are_rejected() {
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
