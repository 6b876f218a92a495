//! A scenario as it is run: steps, templates, variables. Names are numbers here; what can be known beforehand is known.

use super::distribution::Distribution;
use super::media::Packing;
use super::template::Text;
use regex::bytes::Regex;
use std::time::Duration;

/// A variable of the scenario.
pub type Variable = u16;

/// Whom a variable belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The call.
    Call,
    /// The user, where calls are made by users.
    User,
    /// All calls.
    Global,
}

/// A compiled scenario.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// The scenario's name.
    pub name: String,
    /// The steps in order.
    pub steps: Vec<Step>,
    /// Names and scopes of the variables.
    pub variables: Vec<(String, Scope)>,
    /// Names of the response time counters.
    pub timers: Vec<String>,
    /// Names of the transactions.
    pub transactions: Vec<String>,
    /// Names of the counters.
    pub counters: Vec<String>,
    /// Methods that it sends, in order of first use; a message names them by bit.
    pub methods: Vec<Vec<u8>>,
    /// Upper edges of the classes of response times, milliseconds.
    pub response_classes: Vec<u64>,
    /// Upper edges of the classes of call lengths, milliseconds.
    pub length_classes: Vec<u64>,
    /// It begins by waiting for a message: calls come from the peer.
    pub server: bool,
    /// The step behind the label `_unexp.main`, where what was not expected leads.
    pub unexpected: Option<u16>,
    /// Where `_unexp.retaddr` is kept.
    pub return_address: Option<Variable>,
    /// Where `_unexp.pausedaddr` is kept, if the scenario reads it.
    pub pause_address: Option<Variable>,
    /// The steps of `<init>`, gone through once before the first call.
    pub init: Vec<Step>,
    /// Files of recorded media that it plays.
    pub captures: Vec<String>,
    /// Files of sound that it streams.
    pub sounds: Vec<String>,
    /// It has `<exec command=...>`.
    pub commands: bool,
    /// It changes where calls go.
    pub redirects: bool,
    /// Some template or action reads the last message received.
    pub keeps_last: bool,
    /// It plays, streams or echoes media.
    pub media: bool,
    /// What was passed over, as SIPp does, and where.
    pub warnings: Vec<super::xml::Mistake>,
}

/// Kinds of steps.
#[derive(Clone, Debug)]
pub enum Kind {
    /// Send a message.
    Send(Box<Send>),
    /// Wait for a message.
    Receive(Box<Receive>),
    /// Wait.
    Pause {
        /// For how long.
        length: Length,
        /// The call is over but for retransmissions.
        linger: bool,
    },
    /// Do the actions.
    Nothing,
}

/// A step.
#[derive(Clone, Debug)]
pub struct Step {
    /// Line in the file.
    pub line: u32,
    /// What it is.
    pub kind: Kind,
    /// What to show for it.
    pub label: String,
    /// Where to go on.
    pub next: Option<u16>,
    /// Only where this variable is set.
    pub test: Option<Variable>,
    /// Only with this chance, 0 to 1.
    pub chance: f64,
    /// Done only where the variable is set (`true`) or not (`false`).
    pub condition: Option<(Variable, bool)>,
    /// Timers that start, by bit.
    pub starts: u64,
    /// Timers that stop, by bit.
    pub stops: u64,
    /// The timers that stop may be stopped again.
    pub repeats: bool,
    /// A counter that rises.
    pub counter: Option<u16>,
    /// An empty line behind it in the table.
    pub gap: bool,
    /// It is left out of the table.
    pub hidden: bool,
    /// Actions in order.
    pub actions: Vec<Action>,
}

/// A message to send.
#[derive(Clone, Debug)]
pub struct Send {
    /// Its text.
    pub text: Text,
    /// Its method, where the text says so itself and it is a request.
    pub method: Option<u8>,
    /// It is an ACK.
    pub ack: bool,
    /// It is a request.
    pub request: bool,
    /// Retransmitted, first after this time, until something is received.
    pub retransmit: Option<Duration>,
    /// How long a call waits for its connection before the message is given up.
    pub timeout: Option<Duration>,
    /// Percent that are not sent.
    pub lost: f64,
    /// Its branch is kept under this transaction.
    pub start_transaction: Option<u8>,
    /// It is the ACK of this transaction.
    pub ack_transaction: Option<u8>,
}

/// What a received message must be.
#[derive(Clone, Debug)]
pub enum Expected {
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

/// Whether a message may stay out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Optional {
    /// It may not.
    No,
    /// It may.
    Yes,
    /// It may, and may come later still.
    Global,
}

/// A message to receive.
#[derive(Clone, Debug)]
pub struct Receive {
    /// What it is.
    pub expected: Expected,
    /// Whether it may stay out.
    pub optional: Optional,
    /// Methods that a response may belong to, by bit; 0: any.
    pub methods: u64,
    /// A response to this transaction.
    pub transaction: Option<u8>,
    /// Its challenge is kept.
    pub challenge: bool,
    /// Its route set is kept.
    pub routes: bool,
    /// Percent that are thrown away.
    pub lost: f64,
    /// How long to wait.
    pub timeout: Option<Duration>,
    /// Where to go on then.
    pub on_timeout: Option<u16>,
    /// Its media description is not looked at.
    pub ignores_media: bool,
    /// It leads to the step of `next`; only an optional message may stay where the call is.
    pub advances: bool,
}

/// How long a pause is.
#[derive(Clone, Debug)]
pub enum Length {
    /// As the command line says.
    Default,
    /// Milliseconds in a variable.
    Variable(Variable),
    /// Milliseconds drawn.
    Drawn(Distribution),
}

/// Something to compute with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Operand {
    /// A number.
    Number(f64),
    /// What a variable holds.
    Variable(Variable),
}

/// Arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Put.
    Assign,
    /// Plus.
    Add,
    /// Minus.
    Subtract,
    /// Times.
    Multiply,
    /// By.
    Divide,
}

/// Comparisons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
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

/// What a regular expression looks at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Where {
    /// The whole message.
    Message,
    /// Its body.
    Body,
    /// The rest of the line behind a text, which mostly is a header's name with its colon.
    Header {
        /// The text.
        name: Vec<u8>,
        /// In any case.
        any_case: bool,
        /// At the start of a line only.
        line_start: bool,
        /// Which of several, from 1.
        occurrence: u32,
    },
    /// A variable.
    Variable(Variable),
}

/// A media line of the peer's description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// `m=audio`
    Audio,
    /// `m=video`
    Video,
    /// `m=image`
    Image,
}

/// What a call does with recorded media.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Media {
    /// Play a capture, by number, to a media line's port.
    Play {
        /// Which.
        capture: u16,
        /// Where to.
        line: Line,
    },
    /// Stream a file.
    Stream {
        /// Which.
        sound: u16,
        /// How often; negative: without end.
        times: i32,
        /// How it is cut into packets.
        packing: Packing,
    },
    /// Stream packets of one octet's value without end.
    Pattern {
        /// The octet.
        octet: u8,
        /// How packets are made.
        packing: Packing,
    },
    /// Hold the streams of audio, of video.
    Pause([bool; 2]),
    /// Go on with them.
    Resume([bool; 2]),
    /// Send back incoming packets, or no longer.
    Echo {
        /// Begin, or stop.
        on: bool,
        /// Of the video port.
        video: bool,
    },
}

/// An action.
#[derive(Clone, Debug)]
pub enum Action {
    /// Match.
    Match {
        /// The expression.
        regex: Regex,
        /// What it looks at.
        place: Where,
        /// The call fails unless it matches (`true`), or where it matches (`false`).
        check: Option<bool>,
        /// The match and its groups go here.
        assign: Vec<Variable>,
    },
    /// Write a line to the log.
    Log(Text),
    /// Write a line to the errors.
    Warning(Text),
    /// Write a line to the errors and end the run.
    Error(Text),
    /// Put a text into a variable.
    AssignText(Variable, Text),
    /// Compute.
    Compute(Operation, Variable, Operand),
    /// Draw a number.
    Sample(Variable, Distribution),
    /// Read a number from a text.
    ToNumber {
        /// Here.
        to: Variable,
        /// From there.
        from: Variable,
    },
    /// Compare numbers.
    Test {
        /// The outcome goes here.
        to: Option<Variable>,
        /// The call fails unless it holds (`true`), or where it holds (`false`).
        check: Option<bool>,
        /// What is compared.
        left: Variable,
        /// How.
        compare: Compare,
        /// With what.
        right: Operand,
    },
    /// Compare texts: below, at or above zero.
    CompareText {
        /// The outcome goes here.
        to: Option<Variable>,
        /// The call fails unless they are equal (`true`), or where they are (`false`).
        check: Option<bool>,
        /// What is compared.
        left: Variable,
        /// With what.
        right: Text,
    },
    /// Take the space around a text away.
    Trim(Variable),
    /// Seconds and microseconds of the day's clock.
    Clock(Variable, Variable),
    /// Go on at a step.
    Jump(Operand),
    /// Send to another address from now on.
    Redirect {
        /// Address.
        host: Text,
        /// Port.
        port: Text,
        /// Transport.
        protocol: Text,
    },
    /// Check the digest of the last request.
    Verify {
        /// The outcome goes here.
        to: Variable,
        /// User name.
        username: Text,
        /// Password.
        password: Text,
    },
    /// The line of an injection file that has a key.
    Lookup {
        /// The number goes here.
        to: Variable,
        /// Which file.
        file: u16,
        /// The key.
        key: Text,
    },
    /// Append a line to an injection file, in memory.
    Insert {
        /// Which file.
        file: u16,
        /// The line.
        value: Text,
    },
    /// Replace a line of an injection file, in memory.
    Replace {
        /// Which file.
        file: u16,
        /// The number of the line.
        line: Text,
        /// The line.
        value: Text,
    },
    /// Encode a text for a URL, or decode it.
    Url {
        /// The text.
        variable: Variable,
        /// Encode it.
        encode: bool,
    },
    /// The number of the step.
    StepIndex(Variable),
    /// The pause that a message interrupted goes on until its end, milliseconds of the run.
    RestorePause(Operand),
    /// The connection of the call's own is closed; the next message opens another.
    CloseConnection,
    /// Play digits as telephone events: `digits[,milliseconds]`.
    Digits(Text),
    /// `-rtp_echo` sends back, or no longer.
    EchoAll(Operand),
    /// The call ends.
    StopCall,
    /// No further calls.
    StopGracefully,
    /// All ends at once.
    StopNow,
    /// A command of the shell.
    Command(Text),
    /// Media.
    Media(Media),
}
