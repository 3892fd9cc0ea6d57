//! The form of the files: `$ ` a command, `> ` its further lines, then what it printed; `# ` remarks. Lines of stderr
//! start with `2> `, `[exit 1]` is an exit code, `\` stands before a line that would read as something else.
//!
//! A remark `# since 1.28: <reason>` before a command says that the real server of the record cannot answer it: its output
//! is this server's. `$ <command> &` runs beside the commands after it, from its first line on, until `$ stop <n>` has
//! seen n lines of it (then it is ended) or `$ join` its end.

use std::path::Path;

#[derive(Clone)]
pub struct Session {
    /// That of the file, and of the namespace.
    pub name: String,
    pub steps: Vec<Step>,
}

#[derive(Clone, Default)]
pub struct Step {
    /// What stands before the command, line by line.
    remarks: Vec<String>,
    pub since: Option<String>,
    /// For a shell; several lines if it has a here-document.
    pub command: String,
    pub output: String,
}

const SINCE: &str = "# since ";

impl Session {
    pub fn read_all(folder: &Path) -> Vec<Self> {
        let mut paths: Vec<_> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|e| e == "session"))
            .collect();
        paths.sort();
        assert!(!paths.is_empty(), "no sessions in {}", folder.display());
        paths.iter().map(|path| Self::read(path)).collect()
    }

    fn read(path: &Path) -> Self {
        let mut steps: Vec<Step> = Vec::new();
        let mut remarks = Vec::new();
        for line in std::fs::read_to_string(path).unwrap().lines() {
            if let Some(command) = line.strip_prefix("$ ") {
                let since = remarks.iter().find(|r: &&String| r.starts_with(SINCE));
                steps.push(Step {
                    since: since.cloned(),
                    remarks: std::mem::take(&mut remarks),
                    command: command.into(),
                    output: String::new(),
                });
            } else if line.starts_with("# ") {
                remarks.push(line.into());
            } else if let Some(step) = steps.last_mut().filter(|_| remarks.is_empty()) {
                if let Some(more) = line.strip_prefix('>')
                    && step.output.is_empty()
                {
                    step.command += &format!("\n{}", more.strip_prefix(' ').unwrap_or(more));
                } else {
                    step.output += &format!("{}\n", line.strip_prefix('\\').unwrap_or(line));
                }
            } else {
                assert!(line.is_empty(), "{}: what is {line:?}?", path.display());
            }
        }
        for step in &mut steps {
            step.output = step.output.trim_end().into();
        }
        let name = path.file_stem().unwrap().to_str().unwrap().into();
        Self { name, steps }
    }

    pub fn write(&self, folder: &Path) {
        let mut text = String::new();
        for step in &self.steps {
            for remark in &step.remarks {
                text += &format!("{remark}\n");
            }
            let mut prompt = "$ ";
            for line in step.command.lines() {
                text += &format!("{}\n", format!("{prompt}{line}").trim_end());
                prompt = "> ";
            }
            for (n, line) in step.output.lines().enumerate() {
                let read_otherwise = ["$ ", "# ", "\\"].iter().any(|p| line.starts_with(p))
                    || (n == 0 && line.starts_with('>'));
                text += &format!("{}{line}\n", if read_otherwise { "\\" } else { "" });
            }
            text += "\n";
        }
        std::fs::write(
            folder.join(format!("{}.session", self.name)),
            format!("{}\n", text.trim_end()),
        )
        .unwrap();
    }
}
