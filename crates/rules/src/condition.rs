//! Conditions, compiled when they are loaded: comparisons, `&&`, `||`, `!`, `? :`, `in`, `matches`, `startsWith`,
//! `endsWith`, `contains`, `size` and `has` over borrowed facts. What is beyond is left to the interpreter
//! ([`crate::interpret`]), piece by piece; both agree (see the tests).

use crate::effects::{Name, View};
use crate::fact::{self, BoolFact, Fact, IntFact, Names, TextFact};
use crate::interpret::{Interpreted, NoValue};
use crate::spec::Wrong;
use crate::template::regular;
use crate::types::{Judge, MAX_STEPS, Type, expect};
use cel::IdedExpr;
use cel::common::ast::{CallExpr, Expr, LiteralValue};
use cel::parser::Parser;
use regex::Regex;
use std::borrow::Cow;
use std::cmp::Ordering;

/// Letters of a condition at most.
const MAX_LETTERS: usize = 4_096;
/// How deep a condition may nest.
const MAX_DEPTH: u16 = 48;

/// A condition.
#[derive(Clone, Debug)]
pub(crate) struct Condition(Bool);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Order {
    fn of(operator: &str) -> Option<Order> {
        Some(match operator {
            "_==_" => Order::Equal,
            "_!=_" => Order::Unequal,
            "_<_" => Order::Less,
            "_<=_" => Order::LessOrEqual,
            "_>_" => Order::Greater,
            "_>=_" => Order::GreaterOrEqual,
            _ => return None,
        })
    }

    fn holds(self, ordering: Ordering) -> bool {
        match self {
            Order::Equal => ordering.is_eq(),
            Order::Unequal => ordering.is_ne(),
            Order::Less => ordering.is_lt(),
            Order::LessOrEqual => ordering.is_le(),
            Order::Greater => ordering.is_gt(),
            Order::GreaterOrEqual => ordering.is_ge(),
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
    Ints(Order, Int, Int),
    Texts(Order, Text, Text),
    InInts(Int, Vec<i64>),
    InTexts(Text, Vec<Box<str>>),
    InValues(Text, Name),
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
    SizeOfValues(Name),
}

#[derive(Clone, Debug)]
enum Text {
    Constant(Box<str>),
    Fact(TextFact),
}

impl Condition {
    /// The condition that always holds.
    pub(crate) fn always() -> Condition {
        Condition(Bool::Constant(true))
    }

    pub(crate) fn parse(text: &str) -> Result<Condition, Wrong> {
        let expr = parse(text)?;
        let mut judge = Judge::new();
        let found = judge.judge(&expr)?;
        expect(&found, &Type::Bool, "a condition")?;
        if judge.steps > MAX_STEPS {
            return Err(Wrong::new(
                format!(
                    "the condition could take {} steps for one message; {MAX_STEPS} are allowed",
                    judge.steps
                ),
                "run over one list only, and compare less inside",
            ));
        }
        Ok(Condition(compile(&expr)?))
    }

    /// Whether it holds.
    ///
    /// # Errors
    /// [`NoValue`]: it has no value for this message.
    #[inline]
    pub(crate) fn holds(&self, view: &View<'_>, names: &Names) -> Result<bool, NoValue> {
        match self.0 {
            Bool::Constant(holds) => Ok(holds),
            ref condition => condition.value(view, names),
        }
    }

    /// The same by the interpreter alone: what the compiled form must agree with.
    #[cfg(test)]
    pub(crate) fn interpreted(text: &str) -> Result<Condition, Wrong> {
        Ok(Condition(Bool::Interpreted(Box::new(Interpreted::new(
            &parse(text)?,
        )))))
    }

    #[cfg(test)]
    pub(crate) fn is_compiled(&self) -> bool {
        self.0.is_compiled()
    }
}

/// A fact as templates name it.
pub(crate) fn parse_fact(text: &str) -> Result<Fact, Wrong> {
    let expr = parse(text)?;
    match fact::resolve(&expr.expr) {
        Some(fact) => fact,
        None => Err(match Judge::new().judge(&expr) {
            Err(wrong) => wrong,
            Ok(_) => Wrong::new(
                format!("`{text}` is no fact"),
                "name one fact, such as from.user or header[\"Subject\"]",
            ),
        }),
    }
}

fn parse(text: &str) -> Result<IdedExpr, Wrong> {
    if text.len() > MAX_LETTERS {
        return Err(Wrong::new(
            format!(
                "{} letters are more than a condition may have ({MAX_LETTERS})",
                text.len()
            ),
            "divide the rule",
        ));
    }
    let parser = Parser::new()
        .max_recursion_depth(MAX_DEPTH)
        .error_recovery_limit(4);
    parser.parse(text).map_err(|errors| {
        let why = errors.errors.first().map_or_else(
            || "it cannot be read".to_owned(),
            |error| error.msg.lines().next().unwrap_or_default().to_owned(),
        );
        Wrong::new(
            format!("this is no condition: {why}"),
            "write CEL: from.host == \"example.com\" && uri.user.startsWith(\"00\")",
        )
    })
}

/// The fact of an expression that was judged.
fn fact_of(expr: &IdedExpr) -> Option<Fact> {
    fact::resolve(&expr.expr)?.ok()
}

fn compile(expr: &IdedExpr) -> Result<Bool, Wrong> {
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

fn compile_call(call: &CallExpr) -> Result<Option<Bool>, Wrong> {
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
        (operator, [a, b]) => match Order::of(operator) {
            Some(order) => compare(order, a, b)?,
            None => None,
        },
        _ => None,
    })
}

fn each(all: &[&IdedExpr]) -> Result<Vec<Bool>, Wrong> {
    all.iter().map(|one| compile(one)).collect()
}

/// Whether an expression is true or false for sure.
fn is_bool(expr: &IdedExpr) -> bool {
    Judge::new().judge(expr) == Ok(Type::Bool)
}

fn compare(order: Order, a: &IdedExpr, b: &IdedExpr) -> Result<Option<Bool>, Wrong> {
    if let (Some(a), Some(b)) = (int(a), int(b)) {
        return Ok(Some(Bool::Ints(order, a, b)));
    }
    if let (Some(a), Some(b)) = (text(a), text(b)) {
        return Ok(Some(Bool::Texts(order, a, b)));
    }
    let equality = matches!(order, Order::Equal | Order::Unequal);
    if equality && is_bool(a) && is_bool(b) {
        let both = Box::new([compile(a)?, compile(b)?]);
        return Ok(Some(Bool::Same(both, order == Order::Equal)));
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
    fn value<'v>(&'v self, view: &View<'v>, names: &'v Names) -> Cow<'v, str> {
        match self {
            Text::Constant(text) => Cow::Borrowed(text),
            Text::Fact(fact) => view.text(fact, names),
        }
    }
}

impl Int {
    fn value(&self, view: &View<'_>, names: &Names) -> i64 {
        match self {
            Int::Constant(number) => *number,
            Int::Fact(fact) => view.int(fact),
            Int::SizeOfText(text) => text.value(view, names).chars().count() as i64,
            Int::SizeOfValues(name) => view.texts(name).len() as i64,
        }
    }
}

impl Bool {
    fn value(&self, view: &View<'_>, names: &Names) -> Result<bool, NoValue> {
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

/// The first that is `decisive` decides, also where another one has no value (CEL's commutative logic).
fn until(all: &[Bool], decisive: bool, view: &View<'_>, names: &Names) -> Result<bool, NoValue> {
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
