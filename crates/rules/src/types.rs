//! Type checking of conditions, so that an invalid condition is refused when it is loaded.

use crate::fact::{self, Fact, NAMES};
use crate::grammar::MAX_VALUES;
use crate::spec::Diagnosis;
use cel::IdedExpr;
use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, LiteralValue};

/// Maximum number of steps of one evaluation, determined when the condition is loaded.
pub(crate) const MAX_STEPS: u64 = 20_000;

/// A type of CEL, as far as rules use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    Bool,
    Int,
    Text,
    /// A list with its element type and maximum length.
    List(Box<Type>, u64),
    /// Another type, or one that depends on the message.
    Other,
}

impl Type {
    fn name(&self) -> &'static str {
        match self {
            Type::Bool => "true or false",
            Type::Int => "a number",
            Type::Text => "a text",
            Type::List(..) => "a list",
            Type::Other => "something else",
        }
    }

    fn fits(&self, other: &Type) -> bool {
        match (self, other) {
            (Type::Other, _) | (_, Type::Other) => true,
            (Type::List(a, _), Type::List(b, _)) => a.fits(b),
            (a, b) => a == b,
        }
    }
}

pub(crate) fn type_of_fact(fact: &Fact) -> Type {
    match fact {
        Fact::Text(_) => Type::Text,
        Fact::Int(_) => Type::Int,
        Fact::Bool(_) => Type::Bool,
        Fact::Texts(_) => Type::List(Box::new(Type::Text), MAX_VALUES as u64),
    }
}

/// Determines types of expressions and an upper bound of their evaluation steps.
#[derive(Debug, Default)]
pub(crate) struct TypeChecker {
    scope: Vec<(String, Type)>,
    /// How often the present subexpression is evaluated in one evaluation.
    evaluations: u64,
    pub(crate) steps: u64,
}

impl TypeChecker {
    pub(crate) fn new() -> TypeChecker {
        TypeChecker {
            scope: Vec::new(),
            evaluations: 1,
            steps: 0,
        }
    }

    fn count_steps(&mut self, steps: u64) {
        self.steps = self
            .steps
            .saturating_add(self.evaluations.saturating_mul(steps));
    }

    /// The type of an expression, with its evaluation steps counted.
    pub(crate) fn check(&mut self, expr: &IdedExpr) -> Result<Type, Diagnosis> {
        self.count_steps(1);
        let variable = match &expr.expr {
            Expr::Ident(name) => self.scope.iter().rev().find(|(known, _)| known == name),
            _ => None,
        };
        if let Some((_, known)) = variable {
            return Ok(known.clone());
        }
        if let Some(fact) = fact::resolve(&expr.expr) {
            return fact.map(|fact| type_of_fact(&fact));
        }
        match &expr.expr {
            Expr::Ident(name) => Err(unknown(name)),
            Expr::Literal(value) => Ok(literal(value)),
            Expr::Call(call) => self.call(call),
            Expr::Comprehension(comprehension) => self.comprehension(comprehension),
            Expr::List(list) => {
                let mut element = Type::Other;
                for (index, one) in list.elements.iter().enumerate() {
                    let found = self.check(one)?;
                    if index == 0 {
                        element = found;
                    } else if element != found {
                        element = Type::Other;
                    }
                }
                Ok(Type::List(Box::new(element), list.elements.len() as u64))
            }
            Expr::Map(map) => {
                for entry in &map.entries {
                    if let EntryExpr::MapEntry(entry) = &entry.expr {
                        self.check(&entry.key)?;
                        self.check(&entry.value)?;
                    }
                }
                Ok(Type::Other)
            }
            Expr::Select(select) => match self.check(&select.operand)? {
                Type::Other => Ok(Type::Other),
                found => Err(Diagnosis::new(
                    format!("{} has no `{}`", found.name(), select.field),
                    "remove it",
                )),
            },
            Expr::Struct(_) | Expr::Unspecified => Err(Diagnosis::new(
                "protocol buffer messages are not supported",
                "compare texts and numbers",
            )),
        }
    }

    /// The type of a call, which must be a known operator or function with arguments of its types.
    fn call(&mut self, call: &CallExpr) -> Result<Type, Diagnosis> {
        let mut types = Vec::with_capacity(call.args.len() + 1);
        if let Some(target) = &call.target {
            types.push(self.check(target)?);
        }
        for argument in &call.args {
            types.push(self.check(argument)?);
        }
        let member = call.target.is_some();
        let result = match (call.func_name.as_str(), types.as_slice()) {
            ("_&&_" | "_||_", all) => {
                for found in all {
                    expect(found, &Type::Bool, "`&&` and `||`")?;
                }
                Type::Bool
            }
            ("!_", [one]) => {
                expect(one, &Type::Bool, "`!`")?;
                Type::Bool
            }
            ("@not_strictly_false", _) => Type::Bool,
            ("_?_:_", [condition, yes, no]) => {
                expect(condition, &Type::Bool, "the condition of `? :`")?;
                match yes.fits(no) {
                    true => yes.clone(),
                    false => return Err(mismatch("`? :`", yes, no)),
                }
            }
            ("_==_" | "_!=_", [a, b]) => {
                if !a.fits(b) {
                    return Err(mismatch("a comparison", a, b));
                }
                Type::Bool
            }
            ("_<_" | "_<=_" | "_>_" | "_>=_", [a, b]) => {
                if !a.fits(b) || matches!(a, Type::List(..)) {
                    return Err(mismatch("a comparison", a, b));
                }
                Type::Bool
            }
            ("@in", [value, list]) => match list {
                Type::List(element, length) => {
                    self.count_steps(*length);
                    match value.fits(element) {
                        true => Type::Bool,
                        false => return Err(mismatch("`in`", value, element)),
                    }
                }
                Type::Other => Type::Bool,
                found => {
                    return Err(Diagnosis::new(
                        format!("`in` requires a list, not {}", found.name()),
                        "write x in [\"a\", \"b\"], or \"NAME\" in header",
                    ));
                }
            },
            ("_[_]", [Type::List(element, _), index]) => {
                expect(index, &Type::Int, "a list index")?;
                (**element).clone()
            }
            ("_[_]", [Type::Other, _]) => Type::Other,
            ("_+_", [Type::List(a, m), Type::List(b, n)]) => {
                let element = if a == b { (**a).clone() } else { Type::Other };
                self.count_steps(m.saturating_add(*n));
                Type::List(Box::new(element), m.saturating_add(*n))
            }
            ("_+_", [a, b]) if a.fits(b) && *a != Type::Bool => a.clone(),
            ("_-_" | "_*_" | "_/_" | "_%_", [a, b]) if numbers(a) && numbers(b) => a.clone(),
            ("-_", [a]) if numbers(a) => a.clone(),
            ("startsWith" | "endsWith" | "contains", [text, part]) if member => {
                let what = format!("`{}`", call.func_name);
                expect(text, &Type::Text, &what)?;
                expect(part, &Type::Text, &what)?;
                Type::Bool
            }
            ("matches", [text, pattern]) => {
                expect(text, &Type::Text, "`matches`")?;
                expect(pattern, &Type::Text, "`matches`")?;
                let written = call.args.last().map(|last| &last.expr);
                let Some(Expr::Literal(LiteralValue::String(pattern))) = written else {
                    return Err(Diagnosis::new(
                        "`matches` requires a literal regular expression",
                        "write x.matches(\"^[0-9]+$\")",
                    ));
                };
                crate::template::regular(pattern.inner())?;
                // The interpreter compiles the expression at each evaluation.
                self.count_steps(200);
                Type::Bool
            }
            ("size", [Type::Text | Type::List(..) | Type::Other]) => Type::Int,
            ("string", [_]) => Type::Text,
            ("int", [_]) => Type::Int,
            ("bool", [_]) => Type::Bool,
            ("double" | "uint" | "dyn" | "type", [_]) => Type::Other,
            (name, _) => return Err(no_function(name, &types)),
        };
        Ok(result)
    }

    /// The type of a macro such as `exists` or `filter`. Its steps count once per element of the list.
    fn comprehension(&mut self, c: &ComprehensionExpr) -> Result<Type, Diagnosis> {
        for name in [Some(&c.iter_var), c.iter_var2.as_ref()]
            .into_iter()
            .flatten()
        {
            if fact::is_known(name) {
                return Err(Diagnosis::new(
                    format!("`{name}` is a fact and cannot be a variable"),
                    "use another name, such as x",
                ));
            }
        }
        let (element, length) = match self.check(&c.iter_range)? {
            Type::List(element, length) => (*element, length),
            found => {
                return Err(Diagnosis::new(
                    format!("cannot iterate over {}", found.name()),
                    "iterate over headers[\"NAME\"] or a literal list",
                ));
            }
        };
        let accumulated = match self.check(&c.accu_init)? {
            Type::List(..) => Type::List(Box::new(Type::Other), length),
            found => found,
        };
        let (depth, evaluations) = (self.scope.len(), self.evaluations);
        self.scope.push((c.iter_var.clone(), element));
        if let Some(second) = &c.iter_var2 {
            self.scope.push((second.clone(), Type::Other));
        }
        self.scope.push((c.accu_var.clone(), accumulated.clone()));
        self.evaluations = self.evaluations.saturating_mul(length.max(1));
        self.check(&c.loop_cond)?;
        self.check(&c.loop_step)?;
        self.evaluations = evaluations;
        let result = self.check(&c.result);
        self.scope.truncate(depth);
        Ok(match result? {
            Type::List(..) => accumulated,
            found => found,
        })
    }
}

fn numbers(found: &Type) -> bool {
    matches!(found, Type::Int | Type::Other)
}

fn literal(value: &LiteralValue) -> Type {
    match value {
        LiteralValue::Boolean(_) => Type::Bool,
        LiteralValue::Int(_) => Type::Int,
        LiteralValue::String(_) => Type::Text,
        _ => Type::Other,
    }
}

/// Checks that a type is the wanted one.
pub(crate) fn expect(found: &Type, wanted: &Type, what: &str) -> Result<(), Diagnosis> {
    match found.fits(wanted) {
        true => Ok(()),
        false => Err(Diagnosis::new(
            format!("{what} requires {}, not {}", wanted.name(), found.name()),
            match (found, wanted) {
                (Type::Text, Type::Int) => "convert the text to a number: int(x)",
                (Type::Int, Type::Text) => "convert the number to a text: string(x)",
                (_, Type::Bool) => "compare it with something: x == \"...\"",
                _ => "compare values of one type",
            },
        )),
    }
}

fn mismatch(what: &str, a: &Type, b: &Type) -> Diagnosis {
    Diagnosis::new(
        format!("{what} of {} and {}", a.name(), b.name()),
        match (a, b) {
            (Type::Text, Type::Int) => "write the number in quotes",
            (Type::Int, Type::Text) => "write the number without quotes",
            _ => "compare values of one type",
        },
    )
}

/// The error for an unknown function, or known one with other arguments.
fn no_function(name: &str, types: &[Type]) -> Diagnosis {
    const KNOWN: [&str; 12] = [
        "startsWith",
        "endsWith",
        "contains",
        "matches",
        "size",
        "string",
        "int",
        "has",
        "exists",
        "all",
        "filter",
        "within",
    ];
    let given: Vec<&str> = types.iter().map(Type::name).collect();
    let given = given.join(", ");
    if KNOWN.contains(&name) || name.starts_with(['_', '@', '-', '!']) {
        let name = name.trim_matches(['_', '@']);
        return Diagnosis::new(
            format!("`{name}` does not take {given}"),
            "compare values of one type; x.startsWith(\"...\") takes texts",
        );
    }
    Diagnosis::new(
        format!("there is no function `{name}`"),
        format!("there are: {}", KNOWN.join(", ")),
    )
}

/// The error for an unknown name, with a similar known one.
fn unknown(name: &str) -> Diagnosis {
    if fact::is_known(name) {
        return Diagnosis::new(
            format!("`{name}` is not a value by itself"),
            match name {
                "header" | "headers" | "tag" => format!("write {name}[\"NAME\"]"),
                "peer" => "write peer.address or peer.port".to_owned(),
                "body" => "write body.type or body.size".to_owned(),
                _ => format!("write {name}.user, {name}.host or another of its parts"),
            },
        );
    }
    let remedy = match nearest(name, NAMES) {
        Some(word) => format!("did you mean `{word}`?"),
        None => format!("there are: {}", NAMES.join(", ")),
    };
    Diagnosis::new(format!("there is no fact `{name}`"), remedy)
}

/// The known word with the smallest edit distance, if it is small.
pub(crate) fn nearest<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    known
        .iter()
        .map(|candidate| (distance(word, candidate), *candidate))
        .filter(|(distance, candidate)| *distance <= 1 + candidate.len().max(word.len()) / 4)
        .min()
        .map(|(_, candidate)| candidate)
}

/// Edit distance (Levenshtein), for words of usual length.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(64).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, letter) in a.chars().take(64).enumerate() {
        let mut corner = i;
        let mut left = i + 1;
        for (other, cell) in b.iter().zip(row.iter_mut().skip(1)) {
            let up = *cell;
            left = (corner + usize::from(letter != *other))
                .min(left + 1)
                .min(up + 1);
            corner = up;
            *cell = left;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}
