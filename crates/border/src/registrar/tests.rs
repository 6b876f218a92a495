//! Tests of the registrar.
