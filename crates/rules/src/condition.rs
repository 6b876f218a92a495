//! Conditions, compiled when they are loaded: comparisons, `&&`, `||`, `!`, `? :`, `in`, `matches`, `startsWith`,
//! `endsWith`, `contains`, `size` and `has` over borrowed facts. Other expressions are evaluated by the interpreter
//! ([`crate::interpret`]); the tests check that both agree.

use crate::effects::{HeaderName, MessageView};
use crate::fact::{self, BoolFact, Fact, IntFact, RuleNames, TextFact};
use crate::interpret::{Interpreted, NoValue};
use crate::spec::Diagnosis;
use crate::template::regular;
use crate::types::{MAX_STEPS, Type, TypeChecker, expect};
use cel::IdedExpr;
use cel::common::ast::{CallExpr, Expr, LiteralValue};
use cel::parser::Parser;
use regex::Regex;
use std::borrow::Cow;
use std::cmp::Ordering;

/// Maximum length of a condition in characters.
const MAX_LETTERS: usize = 4_096;
/// Maximum nesting depth of a condition.
const MAX_DEPTH: u16 = 48;

/// A compiled condition.
#[derive(Clone, Debug)]
pub(crate) struct Condition(Bool);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ComparisonOp {
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl ComparisonOp {
    fn of(operator: &str) -> Option<ComparisonOp> {
        Some(match operator {
            "_==_" => ComparisonOp::Equal,
            "_!=_" => ComparisonOp::Unequal,
            "_<_" => ComparisonOp::Less,
            "_<=_" => ComparisonOp::LessOrEqual,
            "_>_" => ComparisonOp::Greater,
            "_>=_" => ComparisonOp::GreaterOrEqual,
            _ => return None,
        })
    }

    fn holds(self, ordering: Ordering) -> bool {
        match self {
            ComparisonOp::Equal => ordering.is_eq(),
            ComparisonOp::Unequal => ordering.is_ne(),
            ComparisonOp::Less => ordering.is_lt(),
            ComparisonOp::LessOrEqual => ordering.is_le(),
            ComparisonOp::Greater => ordering.is_gt(),
            ComparisonOp::GreaterOrEqual => ordering.is_ge(),
        }
    }
}

#[derive(Clone, Debug)]
enum Bool {
    Constant(bool),
    Fact(BoolFact),
    Not(Box<Bool>),
    And(Vec<Bool>),
    Or(Vec<Bool>),
    Either(Box<[Bool; 3]>),
    Same(Box<[Bool; 2]>, bool),
    Ints(ComparisonOp, Int, Int),
    Texts(ComparisonOp, Text, Text),
    InInts(Int, Vec<i64>),
    InTexts(Text, Vec<Box<str>>),
    InValues(Text, HeaderName),
    StartsWith(Text, Text),
    EndsWith(Text, Text),
    Contains(Text, Text),
    Matches(Text, Box<Regex>),
    Interpreted(Box<Interpreted>),
}

#[derive(Clone, Debug)]
enum Int {
    Constant(i64),
    Fact(IntFact),
    SizeOfText(Text),
    SizeOfValues(HeaderName),
}

#[derive(Clone, Debug)]
enum Text {
    Constant(Box<str>),
    Fact(TextFact),
}

impl Condition {
    /// The condition that is always true.
    pub(crate) fn always() -> Condition {
        Condition(Bool::Constant(true))
    }

    /// Parses, type-checks and compiles a condition.
    pub(crate) fn parse(text: &str) -> Result<Condition, Diagnosis> {
        let expr = parse(text)?;
        let mut checker = TypeChecker::new();
        let found = checker.check(&expr)?;
        expect(&found, &Type::Bool, "a condition")?;
        if checker.steps > MAX_STEPS {
            return Err(Diagnosis::new(
                format!(
                    "the condition could take {} steps for one message; {MAX_STEPS} are allowed",
                    checker.steps
                ),
                "iterate over one list only, and simplify its condition",
            ));
        }
        Ok(Condition(compile(&expr)?))
    }

    /// Evaluates the condition for a message.
    ///
    /// # Errors
    /// [`NoValue`] if it has no value for this message.
    #[inline]
    pub(crate) fn holds(&self, view: &MessageView<'_>, names: &RuleNames) -> Result<bool, NoValue> {
        match self.0 {
            Bool::Constant(holds) => Ok(holds),
            ref condition => condition.value(view, names),
        }
    }

    /// The condition for the interpreter alone, as a reference for the compiled form.
    #[cfg(test)]
    pub(crate) fn interpreted(text: &str) -> Result<Condition, Diagnosis> {
        Ok(Condition(Bool::Interpreted(Box::new(Interpreted::new(
            &parse(text)?,
        )))))
    }

    #[cfg(test)]
    pub(crate) fn is_compiled(&self) -> bool {
        self.0.is_compiled()
    }
}

/// Parses a fact of a template.
pub(crate) fn parse_fact(text: &str) -> Result<Fact, Diagnosis> {
    let expr = parse(text)?;
    match fact::resolve(&expr.expr) {
        Some(fact) => fact,
        None => Err(match TypeChecker::new().check(&expr) {
            Err(diagnosis) => diagnosis,
            Ok(_) => Diagnosis::new(
                format!("`{text}` is not a fact"),
                "name one fact, such as from.user or header[\"Subject\"]",
            ),
        }),
    }
}

fn parse(text: &str) -> Result<IdedExpr, Diagnosis> {
    if text.len() > MAX_LETTERS {
        return Err(Diagnosis::new(
            format!(
                "the condition has {} bytes; {MAX_LETTERS} are allowed",
                text.len()
            ),
            "split the rule",
        ));
    }
    let parser = Parser::new()
        .max_recursion_depth(MAX_DEPTH)
        .error_recovery_limit(4);
    parser.parse(text).map_err(|errors| {
        let why = errors.errors.first().map_or_else(
            || "syntax error".to_owned(),
            |error| error.msg.lines().next().unwrap_or_default().to_owned(),
        );
        Diagnosis::new(
            format!("invalid condition: {why}"),
            "write CEL: from.host == \"example.com\" && uri.user.startsWith(\"00\")",
        )
    })
}

/// The fact of a checked expression.
fn fact_of(expr: &IdedExpr) -> Option<Fact> {
    fact::resolve(&expr.expr)?.ok()
}

fn compile(expr: &IdedExpr) -> Result<Bool, Diagnosis> {
    if let Some(Fact::Bool(fact)) = fact_of(expr) {
        return Ok(Bool::Fact(fact));
    }
    let compiled = match &expr.expr {
        Expr::Literal(LiteralValue::Boolean(value)) => Some(Bool::Constant(*value.inner())),
        Expr::Call(call) => compile_call(call)?,
        _ => None,
    };
    Ok(compiled.unwrap_or_else(|| Bool::Interpreted(Box::new(Interpreted::new(expr)))))
}

fn compile_call(call: &CallExpr) -> Result<Option<Bool>, Diagnosis> {
    let arguments: Vec<&IdedExpr> = call
        .target
        .as_deref()
        .into_iter()
        .chain(&call.args)
        .collect();
    let texts = |make: fn(Text, Text) -> Bool| match arguments.as_slice() {
        [a, b] => Some(make(text(a)?, text(b)?)),
        _ => None,
    };
    Ok(match (call.func_name.as_str(), arguments.as_slice()) {
        ("_&&_", all) => Some(Bool::And(each(all)?)),
        ("_||_", all) => Some(Bool::Or(each(all)?)),
        ("!_", [one]) => Some(Bool::Not(Box::new(compile(one)?))),
        ("_?_:_", [condition, yes, no]) if is_bool(yes) && is_bool(no) => {
            Some(Bool::Either(Box::new([
                compile(condition)?,
                compile(yes)?,
                compile(no)?,
            ])))
        }
        ("@in", [value, list]) => within(value, list),
        ("startsWith", _) => texts(Bool::StartsWith),
        ("endsWith", _) => texts(Bool::EndsWith),
        ("contains", _) => texts(Bool::Contains),
        ("matches", [value, pattern]) => match (text(value), text(pattern)) {
            (Some(value), Some(Text::Constant(pattern))) => {
                Some(Bool::Matches(value, Box::new(regular(&pattern)?)))
            }
            _ => None,
        },
        (operator, [a, b]) => match ComparisonOp::of(operator) {
            Some(order) => compare(order, a, b)?,
            None => None,
        },
        _ => None,
    })
}

fn each(all: &[&IdedExpr]) -> Result<Vec<Bool>, Diagnosis> {
    all.iter().map(|one| compile(one)).collect()
}

/// Whether the type of an expression is known to be Boolean.
fn is_bool(expr: &IdedExpr) -> bool {
    TypeChecker::new().check(expr) == Ok(Type::Bool)
}

fn compare(order: ComparisonOp, a: &IdedExpr, b: &IdedExpr) -> Result<Option<Bool>, Diagnosis> {
    if let (Some(a), Some(b)) = (int(a), int(b)) {
        return Ok(Some(Bool::Ints(order, a, b)));
    }
    if let (Some(a), Some(b)) = (text(a), text(b)) {
        return Ok(Some(Bool::Texts(order, a, b)));
    }
    let equality = matches!(order, ComparisonOp::Equal | ComparisonOp::Unequal);
    if equality && is_bool(a) && is_bool(b) {
        let both = Box::new([compile(a)?, compile(b)?]);
        return Ok(Some(Bool::Same(both, order == ComparisonOp::Equal)));
    }
    Ok(None)
}

fn within(value: &IdedExpr, list: &IdedExpr) -> Option<Bool> {
    if let Some(Fact::Texts(name)) = fact_of(list) {
        return Some(Bool::InValues(text(value)?, name));
    }
    let Expr::List(list) = &list.expr else {
        return None;
    };
    if let Some(value) = int(value) {
        let numbers = list.elements.iter().map(|one| match int(one)? {
            Int::Constant(number) => Some(number),
            _ => None,
        });
        return Some(Bool::InInts(value, numbers.collect::<Option<_>>()?));
    }
    let value = text(value)?;
    let words = list.elements.iter().map(|one| match text(one)? {
        Text::Constant(word) => Some(word),
        Text::Fact(_) => None,
    });
    Some(Bool::InTexts(value, words.collect::<Option<_>>()?))
}

fn text(expr: &IdedExpr) -> Option<Text> {
    match (&expr.expr, fact_of(expr)) {
        (_, Some(Fact::Text(fact))) => Some(Text::Fact(fact)),
        (Expr::Literal(LiteralValue::String(text)), _) => Some(Text::Constant(text.inner().into())),
        _ => None,
    }
}

fn int(expr: &IdedExpr) -> Option<Int> {
    match (&expr.expr, fact_of(expr)) {
        (_, Some(Fact::Int(fact))) => Some(Int::Fact(fact)),
        (Expr::Literal(LiteralValue::Int(number)), _) => Some(Int::Constant(*number.inner())),
        (Expr::Call(call), _) if call.func_name == "size" => {
            let mut arguments = call.target.as_deref().into_iter().chain(&call.args);
            let (one, None) = (arguments.next()?, arguments.next()) else {
                return None;
            };
            match fact_of(one) {
                Some(Fact::Texts(name)) => Some(Int::SizeOfValues(name)),
                _ => text(one).map(Int::SizeOfText),
            }
        }
        _ => None,
    }
}

impl Text {
    fn value<'v>(&'v self, view: &MessageView<'v>, names: &'v RuleNames) -> Cow<'v, str> {
        match self {
            Text::Constant(text) => Cow::Borrowed(text),
            Text::Fact(fact) => view.text(fact, names),
        }
    }
}

impl Int {
    fn value(&self, view: &MessageView<'_>, names: &RuleNames) -> i64 {
        match self {
            Int::Constant(number) => *number,
            Int::Fact(fact) => view.int(fact),
            Int::SizeOfText(text) => text.value(view, names).chars().count() as i64,
            Int::SizeOfValues(name) => view.texts(name).len() as i64,
        }
    }
}

impl Bool {
    fn value(&self, view: &MessageView<'_>, names: &RuleNames) -> Result<bool, NoValue> {
        Ok(match self {
            Bool::Constant(value) => *value,
            Bool::Fact(fact) => view.bool(fact),
            Bool::Not(one) => !one.value(view, names)?,
            Bool::And(all) => return until(all, false, view, names),
            Bool::Or(all) => return until(all, true, view, names),
            Bool::Either(parts) => {
                let [condition, yes, no] = &**parts;
                match condition.value(view, names)? {
                    true => yes.value(view, names)?,
                    false => no.value(view, names)?,
                }
            }
            Bool::Same(both, wanted) => {
                let [a, b] = &**both;
                (a.value(view, names)? == b.value(view, names)?) == *wanted
            }
            Bool::Ints(order, a, b) => order.holds(a.value(view, names).cmp(&b.value(view, names))),
            Bool::Texts(order, a, b) => {
                order.holds(a.value(view, names).cmp(&b.value(view, names)))
            }
            Bool::InInts(value, list) => list.contains(&value.value(view, names)),
            Bool::InTexts(value, list) => {
                let value = value.value(view, names);
                list.iter().any(|word| **word == *value)
            }
            Bool::InValues(value, name) => {
                let value = value.value(view, names);
                view.texts(name).contains(&value)
            }
            Bool::StartsWith(text, part) => text
                .value(view, names)
                .starts_with(&*part.value(view, names)),
            Bool::EndsWith(text, part) => {
                text.value(view, names).ends_with(&*part.value(view, names))
            }
            Bool::Contains(text, part) => {
                text.value(view, names).contains(&*part.value(view, names))
            }
            Bool::Matches(text, regex) => regex.is_match(&text.value(view, names)),
            Bool::Interpreted(one) => return one.bool(view, names),
        })
    }

    #[cfg(test)]
    fn is_compiled(&self) -> bool {
        match self {
            Bool::Interpreted(_) => false,
            Bool::Not(one) => one.is_compiled(),
            Bool::And(all) | Bool::Or(all) => all.iter().all(Bool::is_compiled),
            Bool::Either(parts) => parts.iter().all(Bool::is_compiled),
            Bool::Same(parts, _) => parts.iter().all(Bool::is_compiled),
            _ => true,
        }
    }
}

/// Returns `decisive` if any operand has this value, even if another one has no value (CEL's commutative logic).
fn until(
    all: &[Bool],
    decisive: bool,
    view: &MessageView<'_>,
    names: &RuleNames,
) -> Result<bool, NoValue> {
    let mut failed = false;
    for one in all {
        match one.value(view, names) {
            Ok(value) if value == decisive => return Ok(decisive),
            Ok(_) => {}
            Err(NoValue) => failed = true,
        }
    }
    match failed {
        true => Err(NoValue),
        false => Ok(!decisive),
    }
}

#[cfg(test)]
#[path = "condition_tests.rs"]
mod tests;
