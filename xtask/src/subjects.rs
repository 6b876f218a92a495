//! Peers of the benchmarks, as their subject files start them (`subjects/`).

use crate::process::root;
use std::path::Path;
use toml_edit::{DocumentMut, Item};

/// The command of the first process of a subject, after its files were written into `folder`; `values` are its
/// placeholders, without those of the folder.
///
/// # Errors
/// The file is missing or has another form, or a file cannot be written.
pub fn command(name: &str, folder: &Path, values: &[(&str, &str)]) -> Result<Vec<String>, String> {
    let path = root().join("subjects").join(format!("{name}.toml"));
    let bad = |why: &str| format!("{}: {why}", path.display());
    let text = std::fs::read_to_string(&path).map_err(|error| bad(&error.to_string()))?;
    let file: DocumentMut = text
        .parse()
        .map_err(|error: toml_edit::TomlError| bad(error.message()))?;
    let dir = folder.display().to_string();
    let fill = |text: &str| {
        let text = text.replace("@dir@", &dir);
        values.iter().fold(text, |text, (name, value)| {
            text.replace(&format!("@{name}@"), value)
        })
    };
    let tables = |key: &str| file.get(key).and_then(Item::as_array_of_tables);
    for template in tables("file").into_iter().flatten() {
        let word = |key: &str| template.get(key).and_then(Item::as_str);
        let (Some(name), Some(text)) = (word("name"), word("text")) else {
            return Err(bad("a [[file]] without name and text"));
        };
        let path = folder.join(name);
        std::fs::write(&path, fill(text))
            .map_err(|error| format!("{}: {error}", path.display()))?;
    }
    let process = tables("process").and_then(|all| all.iter().next());
    let process = process.ok_or_else(|| bad("no [[process]]"))?;
    let program = process.get("program").and_then(Item::as_str);
    let arguments = process.get("arguments").and_then(Item::as_array);
    let (Some(program), Some(arguments)) = (program, arguments) else {
        return Err(bad("a [[process]] without program and arguments"));
    };
    let words = arguments.iter().filter_map(|word| word.as_str());
    Ok(std::iter::once(program).chain(words).map(fill).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_of_the_benchmarks_have_subject_files() {
        let folder = std::env::temp_dir().join(format!("hornwork-xtask-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let values = [("listen", "127.0.0.1:5070"), ("called", "127.0.0.1:5080")];
        let words = command("kamailio", &folder, &values).unwrap();
        assert!(words[0] == "kamailio" && words.iter().all(|word| !word.contains('@')));
        let text = std::fs::read_to_string(folder.join("kamailio.cfg")).unwrap();
        assert!(text.contains("listen=udp:127.0.0.1:5070") && !text.contains('@'));
        assert!(command("absent", &folder, &values).is_err());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
