//! A scenario in executable form: steps, templates, variables. Names are resolved to numbers, constants are
//! precomputed.

use super::distribution::Distribution;
use super::media::Packetization;
use super::template::TextTemplate;
use regex::bytes::Regex;
use std::time::Duration;

/// A variable of the scenario.
pub type Variable = u16;

/// The scope of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The call.
    Call,
    /// The user, if calls are made by users.
    User,
    /// All calls.
    Global,
}

/// A compiled scenario.
#[derive(Clone, Debug, Default)]
pub struct ScenarioProgram {
    /// The scenario's name.
    pub name: String,
    /// The steps in order.
    pub steps: Vec<ScenarioStep>,
    /// Names and scopes of the variables.
    pub variables: Vec<(String, Scope)>,
    /// Names of the response time counters.
    pub timers: Vec<String>,
    /// Names of the transactions.
    pub transactions: Vec<String>,
    /// Names of the counters.
    pub counters: Vec<String>,
    /// Methods that it sends, in order of first use; messages refer to them by bit.
    pub methods: Vec<Vec<u8>>,
    /// Upper edges of the classes of response times, milliseconds.
    pub response_classes: Vec<u64>,
    /// Upper edges of the classes of call lengths, milliseconds.
    pub length_classes: Vec<u64>,
    /// Whether it starts by waiting for a message: calls come from the peer.
    pub server: bool,
    /// The step after the label `_unexp.main`, the target for unexpected messages.
    pub unexpected: Option<u16>,
    /// The variable for `_unexp.retaddr`.
    pub return_address: Option<Variable>,
    /// The variable for `_unexp.pausedaddr`, if the scenario reads it.
    pub pause_address: Option<Variable>,
    /// The steps of `<init>`, executed once before the first call.
    pub init: Vec<ScenarioStep>,
    /// Files of recorded media that it plays.
    pub captures: Vec<String>,
    /// Files of sound that it streams.
    pub sounds: Vec<String>,
    /// Whether it has `<exec command=...>`.
    pub commands: bool,
    /// Whether it redirects calls.
    pub redirects: bool,
    /// Whether a template or action reads the last received message.
    pub keeps_last: bool,
    /// Whether it plays, streams or echoes media.
    pub media: bool,
    /// Ignored parts, as in SIPp, with their lines.
    pub warnings: Vec<super::xml::ScenarioError>,
}

/// Kinds of steps.
#[derive(Clone, Debug)]
pub enum StepKind {
    /// Send a message.
    Send(Box<SendStep>),
    /// Wait for a message.
    Receive(Box<ReceiveStep>),
    /// Wait.
    Pause {
        /// Its duration.
        length: PauseLength,
        /// Whether the call is complete except for retransmissions.
        linger: bool,
    },
    /// Only execute the actions.
    Nothing,
}

/// A step.
#[derive(Clone, Debug)]
pub struct ScenarioStep {
    /// Line in the file.
    pub line: u32,
    /// Kind of the step.
    pub kind: StepKind,
    /// Label in tables.
    pub label: String,
    /// Target of the branch.
    pub next: Option<u16>,
    /// The branch is taken only if this variable is set.
    pub test: Option<Variable>,
    /// The branch is taken only with this chance, 0 to 1.
    pub chance: f64,
    /// Executed only if the variable is set (`true`) or not set (`false`).
    pub condition: Option<(Variable, bool)>,
    /// Timers that start, as a bit mask.
    pub starts: u64,
    /// Timers that stop, as a bit mask.
    pub stops: u64,
    /// Whether the stopped timers may be stopped again.
    pub repeats: bool,
    /// The counter that it increments.
    pub counter: Option<u16>,
    /// Whether an empty line follows it in the table.
    pub gap: bool,
    /// Whether it is omitted from the table.
    pub hidden: bool,
    /// Actions in order.
    pub actions: Vec<ScenarioAction>,
}

/// A message to send.
#[derive(Clone, Debug)]
pub struct SendStep {
    /// Its text.
    pub text: TextTemplate,
    /// Its method, if it is a request and the method is constant.
    pub method: Option<u8>,
    /// Whether it is an ACK.
    pub ack: bool,
    /// Whether it raises `[cseq]`: a request other than ACK and CANCEL, which have the number of their INVITE (RFC 3261
    /// sections 9.1 and 17.1.1.3).
    pub raises_cseq: bool,
    /// Retransmitted until a message is received; the first interval.
    pub retransmit: Option<Duration>,
    /// Longest time that a call waits for its connection to send the message.
    pub timeout: Option<Duration>,
    /// The step after the last retransmission without an answer.
    pub on_timeout: Option<u16>,
    /// Share that is not sent, percent, in place of that of all messages.
    pub lost: Option<f64>,
    /// The transaction that keeps its branch.
    pub start_transaction: Option<u8>,
    /// The transaction that it acknowledges.
    pub ack_transaction: Option<u8>,
}

/// Criteria for a received message.
#[derive(Clone, Debug)]
pub enum ExpectedMessage {
    /// A response with this status.
    Status(u16),
    /// A request with this method.
    Method(Vec<u8>),
    /// A request whose method matches.
    Methods(Regex),
    /// A response with this status, or a request with this method.
    Either(u16, Vec<u8>),
    /// No message at all: neither a status nor a method is given.
    Nothing,
}

/// Whether a message is optional.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Optional {
    /// Required.
    No,
    /// Optional at this step.
    Yes,
    /// Optional, and accepted at later steps too.
    Global,
}

/// A message to receive.
#[derive(Clone, Debug)]
pub struct ReceiveStep {
    /// Criteria for the message.
    pub expected: ExpectedMessage,
    /// Whether it is optional.
    pub optional: Optional,
    /// Methods of requests that a response may belong to, as a bit mask; 0: any.
    pub methods: u64,
    /// The transaction that a response belongs to.
    pub transaction: Option<u8>,
    /// Whether its challenge is kept.
    pub challenge: bool,
    /// Whether its route set is kept.
    pub routes: bool,
    /// Share that is discarded, percent, in place of that of all messages.
    pub lost: Option<f64>,
    /// Longest wait.
    pub timeout: Option<Duration>,
    /// Target after the timeout.
    pub on_timeout: Option<u16>,
    /// Whether its session description is ignored.
    pub ignores_media: bool,
    /// Whether it advances the call; only an optional message may leave the call at its step.
    pub advances: bool,
}

/// Duration of a pause.
#[derive(Clone, Debug)]
pub enum PauseLength {
    /// The default of the command line.
    Default,
    /// Milliseconds in a variable.
    Variable(Variable),
    /// Milliseconds from a distribution.
    Drawn(Distribution),
}

/// An operand of arithmetic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Operand {
    /// A number.
    Number(f64),
    /// The value of a variable.
    Variable(Variable),
}

/// Arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Assignment.
    Assign,
    /// Addition.
    Add,
    /// Subtraction.
    Subtract,
    /// Multiplication.
    Multiply,
    /// Division.
    Divide,
}

/// Comparisons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComparisonOperator {
    /// `equal`
    Equal,
    /// `not_equal`
    NotEqual,
    /// `greater_than`
    Greater,
    /// `less_than`
    Less,
    /// `greater_than_equal`
    GreaterEqual,
    /// `less_than_equal`
    LessEqual,
}

/// The text that a regular expression matches against.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MatchTarget {
    /// The whole message.
    Message,
    /// Its body.
    Body,
    /// The rest of the line after a text, which usually is a header name with its colon.
    Header {
        /// The text.
        name: Vec<u8>,
        /// Ignores case.
        any_case: bool,
        /// Only at the start of a line.
        line_start: bool,
        /// The number of the occurrence, from 1.
        occurrence: u32,
    },
    /// A variable.
    Variable(Variable),
}

/// A media line of the peer's session description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerMediaLine {
    /// `m=audio`
    Audio,
    /// `m=video`
    Video,
    /// `m=image`
    Image,
}

/// Media actions of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediaAction {
    /// Play a capture to the port of a media line.
    Play {
        /// Number of the capture.
        capture: u16,
        /// The destination.
        line: PeerMediaLine,
    },
    /// Stream a file.
    Stream {
        /// Number of the sound.
        sound: u16,
        /// Repetitions; negative: endless.
        times: i32,
        /// Packetization.
        packing: Packetization,
    },
    /// Stream packets of one repeated octet, endlessly.
    Pattern {
        /// The octet.
        octet: u8,
        /// Packetization.
        packing: Packetization,
    },
    /// Pause the streams of audio, of video.
    Pause([bool; 2]),
    /// Resume them.
    Resume([bool; 2]),
    /// Send back received packets, or stop it.
    Echo {
        /// Whether to start.
        on: bool,
        /// Whether the video port is meant.
        video: bool,
    },
}

/// An action.
#[derive(Clone, Debug)]
pub enum ScenarioAction {
    /// Match a regular expression.
    Match {
        /// The expression.
        regex: Regex,
        /// The text to match.
        target: MatchTarget,
        /// The call fails without a match (`true`), or with one (`false`).
        check: Option<bool>,
        /// Variables for the match and its groups.
        assign: Vec<Variable>,
    },
    /// Write a line to the log.
    Log(TextTemplate),
    /// Write a line to the errors.
    Warning(TextTemplate),
    /// Write a line to the errors and end the run.
    Error(TextTemplate),
    /// Assign a text to a variable.
    AssignText(Variable, TextTemplate),
    /// Arithmetic.
    Compute(Operation, Variable, Operand),
    /// Draw a random number.
    Sample(Variable, Distribution),
    /// Read a number from a text.
    ToNumber {
        /// Target.
        to: Variable,
        /// Source.
        from: Variable,
    },
    /// Compare numbers.
    Test {
        /// Variable for the result.
        to: Option<Variable>,
        /// The call fails unless the comparison holds (`true`), or if it holds (`false`).
        check: Option<bool>,
        /// Left operand.
        left: Variable,
        /// Comparison.
        compare: ComparisonOperator,
        /// Right operand.
        right: Operand,
    },
    /// Compare texts: below, at or above zero.
    CompareText {
        /// Variable for the result.
        to: Option<Variable>,
        /// The call fails unless the texts are equal (`true`), or if they are equal (`false`).
        check: Option<bool>,
        /// Left operand.
        left: Variable,
        /// Right operand.
        right: TextTemplate,
    },
    /// Remove surrounding space of a text.
    Trim(Variable),
    /// Seconds and microseconds of the wall clock.
    Clock(Variable, Variable),
    /// Continue at a step.
    Jump(Operand),
    /// Send to another address from now on.
    Redirect {
        /// Address.
        host: TextTemplate,
        /// Port.
        port: TextTemplate,
        /// Transport.
        protocol: TextTemplate,
    },
    /// Check the digest of the last request.
    Verify {
        /// Variable for the result.
        to: Variable,
        /// User name.
        username: TextTemplate,
        /// Password.
        password: TextTemplate,
    },
    /// The line of an injection file that has a key.
    Lookup {
        /// Variable for the line number.
        to: Variable,
        /// Number of the file.
        file: u16,
        /// The key.
        key: TextTemplate,
    },
    /// Append a line to an injection file, in memory.
    Insert {
        /// Number of the file.
        file: u16,
        /// The line.
        value: TextTemplate,
    },
    /// Replace a line of an injection file, in memory.
    Replace {
        /// Number of the file.
        file: u16,
        /// The number of the line.
        line: TextTemplate,
        /// The line.
        value: TextTemplate,
    },
    /// URL-encode or decode a text.
    Url {
        /// The text.
        variable: Variable,
        /// Whether to encode.
        encode: bool,
    },
    /// The number of the current step.
    StepIndex(Variable),
    /// Resume an interrupted pause until its end, milliseconds of the run.
    RestorePause(Operand),
    /// Close the call's own connection; the next message opens another.
    CloseConnection,
    /// Play digits as telephone events: `digits[,milliseconds]`.
    Digits(TextTemplate),
    /// Enable or disable `-rtp_echo`.
    EchoAll(Operand),
    /// End the call.
    StopCall,
    /// Start no further calls.
    StopGracefully,
    /// End the run at once.
    StopNow,
    /// Run a shell command.
    Command(TextTemplate),
    /// Media.
    Media(MediaAction),
}
