//! Conditions beyond the compiled subset, evaluated by the interpreter of the cel crate with facts as variables.

use crate::effects::MessageView;
use crate::fact::{self, Fact, RuleNames};
use cel::common::ast::{EntryExpr, Expr};
use cel::{Context, Env, IdedExpr, Value};
use std::sync::{Arc, OnceLock};

/// An expression in which facts were replaced by variables.
#[derive(Clone, Debug)]
pub(crate) struct Interpreted {
    expr: Arc<IdedExpr>,
    facts: Vec<(String, Fact)>,
}

/// The condition has no value for this message: division by zero, text that is not a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoValue;

/// The standard functions, created once.
fn functions() -> Arc<Env> {
    static FUNCTIONS: OnceLock<Arc<Env>> = OnceLock::new();
    FUNCTIONS.get_or_init(|| Arc::new(Env::stdlib())).clone()
}

impl Interpreted {
    /// Extracts the facts from an expression that was checked ([`crate::types::TypeChecker`]).
    pub(crate) fn new(expr: &IdedExpr) -> Interpreted {
        let mut expr = expr.clone();
        let mut facts = Vec::new();
        take_facts(&mut expr, &mut Vec::new(), &mut facts);
        Interpreted {
            expr: Arc::new(expr),
            facts,
        }
    }

    /// Evaluates the expression for a message.
    pub(crate) fn bool(&self, view: &MessageView<'_>, names: &RuleNames) -> Result<bool, NoValue> {
        let mut context = Context::with_env(functions());
        for (name, fact) in &self.facts {
            let value = match fact {
                Fact::Text(fact) => Value::from(&*view.text(fact, names)),
                Fact::Int(fact) => Value::Int(view.int(fact)),
                Fact::Bool(fact) => Value::Bool(view.bool(fact)),
                Fact::Texts(name) => {
                    let values: Vec<String> =
                        view.texts(name).into_iter().map(Into::into).collect();
                    Value::from(values)
                }
            };
            context.add_variable_from_value(name.clone(), value);
        }
        match Value::resolve(&self.expr, &context) {
            Ok(Value::Bool(value)) => Ok(value),
            _ => Err(NoValue),
        }
    }
}

/// Replaces each fact by a variable.
fn take_facts(expr: &mut IdedExpr, bound: &mut Vec<String>, facts: &mut Vec<(String, Fact)>) {
    let is_bound = matches!(&expr.expr, Expr::Ident(name) if bound.contains(name));
    if is_bound {
        return;
    }
    if let Some(Ok(fact)) = fact::resolve(&expr.expr) {
        let known = facts.iter().find(|(_, known)| *known == fact);
        let name = match known {
            Some((name, _)) => name.clone(),
            None => {
                // A CEL identifier cannot begin with `@`, so no variable of the expression hides it.
                let name = format!("@fact{}", facts.len());
                facts.push((name.clone(), fact));
                name
            }
        };
        expr.expr = Expr::Ident(name);
        return;
    }
    match &mut expr.expr {
        Expr::Call(call) => {
            if let Some(target) = &mut call.target {
                take_facts(target, bound, facts);
            }
            for argument in &mut call.args {
                take_facts(argument, bound, facts);
            }
        }
        Expr::Comprehension(c) => {
            take_facts(&mut c.iter_range, bound, facts);
            take_facts(&mut c.accu_init, bound, facts);
            let depth = bound.len();
            bound.push(c.iter_var.clone());
            bound.push(c.accu_var.clone());
            bound.extend(c.iter_var2.clone());
            take_facts(&mut c.loop_cond, bound, facts);
            take_facts(&mut c.loop_step, bound, facts);
            take_facts(&mut c.result, bound, facts);
            bound.truncate(depth);
        }
        Expr::List(list) => {
            for element in &mut list.elements {
                take_facts(element, bound, facts);
            }
        }
        Expr::Map(map) => {
            for entry in &mut map.entries {
                if let EntryExpr::MapEntry(entry) = &mut entry.expr {
                    take_facts(&mut entry.key, bound, facts);
                    take_facts(&mut entry.value, bound, facts);
                }
            }
        }
        Expr::Select(select) => take_facts(&mut select.operand, bound, facts),
        Expr::Ident(_) | Expr::Literal(_) | Expr::Struct(_) | Expr::Unspecified => {}
    }
}
