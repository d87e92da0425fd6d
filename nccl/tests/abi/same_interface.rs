//! The library against NCCL's own: names, layouts, answers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use nccl::SURFACE;

use crate::programs::{compile, folder, is_there, package, succeed, with_library};
use crate::wheels::{VERSIONS, for_each, includes, symbols};

/// A prefix into which the library was installed.
fn installed() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let prefix = folder("installed");
        succeed(Command::new(env!("CARGO_BIN_EXE_install_nccl")).arg(&prefix));
        prefix
    })
}

/// Kinds by name.
fn exported() -> BTreeMap<String, char> {
    let library = installed().join("lib/libnccl.so.2");
    let symbols = symbols(&library).expect("nm");
    symbols.lines().map(|line| (line[2..].to_owned(), line.as_bytes()[0].into())).collect()
}

#[test]
fn installed_functions_are_weak_and_have_strong_twins() {
    if !is_there("nm") {
        println!("skipped: nm is not installed");
        return;
    }
    let mut exported = exported();
    assert_eq!(exported.remove("ncclResetDebugInitInternal"), Some('T'));
    for name in SURFACE.iter().map(|function| function.name) {
        assert_eq!(exported.remove(name), Some('W'), "{name}");
        assert_eq!(exported.remove(&format!("p{name}")), Some('T'), "p{name}");
    }
    assert_eq!(exported, BTreeMap::new(), "names that no table knows");
}

#[test]
fn the_installed_library_is_found_by_all_names_and_works() {
    let prefix = installed();
    for name in ["libnccl.so", "libnccl.so.2", "libnccl.so.2.29.7", "pkgconfig/nccl.pc"] {
        assert!(prefix.join("lib").join(name).exists(), "{name}");
    }
    if !is_there("gcc") {
        println!("skipped: a program with the installed library: gcc is not installed");
        return;
    }
    let program = compile("collectives.c", "installed", &[&prefix.join("include")]);
    let mut program = Command::new(program);
    succeed(program.env("LD_LIBRARY_PATH", prefix.join("lib")).args(["threads", "2", "small"]));
}

#[test]
fn no_name_of_nccl_is_missing() {
    if !is_there("nm") {
        println!("skipped: nm is not installed");
        return;
    }
    let exported = exported();
    for_each("names", |version, wheel| {
        assert!(wheel.symbols.len() > 70, "{version} has names");
        for (kind, name) in &wheel.symbols {
            assert_eq!(exported.get(name), Some(kind), "{name} of {version}");
        }
    });
}

/// The lines of `layout.c` compiled with the headers in these folders.
fn layout(name: &str, include: &[PathBuf]) -> BTreeSet<String> {
    let printed = succeed(&mut with_library(compile("layout.c", name, include)));
    printed.lines().map(str::to_owned).collect()
}

#[test]
fn structs_and_constants_are_those_of_nccl() {
    if !is_there("gcc") {
        println!("skipped: gcc is not installed");
        return;
    }
    let ours = layout("layout", &[package().join("include")]);
    for line in nccl::layout() {
        assert!(ours.contains(&line), "{line} is not so in include/nccl.h");
    }
    for_each("layouts", |version, wheel| {
        let theirs = layout(&format!("layout-{version}"), &includes(&wheel.include));
        assert!(theirs.len() > 80);
        let differ: Vec<_> = theirs.difference(&ours).map(String::as_str).collect();
        let config = theirs.iter().find(|line| line.starts_with("sizeof ncclConfig_t"));
        // Each version has added to it.
        let newest = VERSIONS.last() == Some(&version);
        let expected = if newest { None } else { config.map(String::as_str) };
        assert_eq!(differ, Vec::from_iter(expected), "{version}");
    });
}

#[test]
fn answers_are_those_of_nccl() {
    for_each("answers", |version, wheel| {
        let include = includes(&wheel.include);
        let program = compile("answers.c", &format!("answers-{version}"), &include);
        assert_eq!(succeed(&mut with_library(program)), wheel.answers, "{version}");
    });
}

#[test]
fn programs_built_with_headers_of_nccl_run() {
    for_each("a program", |version, wheel| {
        let include = includes(&wheel.include);
        let program = compile("collectives.c", &format!("collectives-{version}"), &include);
        succeed(with_library(&program).args(["threads", "2", "small"]));
        let program = compile("lifetimes.c", &format!("lifetimes-{version}"), &include);
        for scenario in ["nonblocking", "bad_beginnings"] {
            succeed(with_library(&program).arg(scenario));
        }
    });
}

#[test]
fn the_readme_tells_what_is_real() {
    let readme = package().join("README.md");
    let text = fs::read_to_string(&readme).expect("the README");
    let (begin, end) = ("<!-- generated from src/surface.rs -->\n", "<!-- end -->\n");
    let (head, rest) = text.split_once(begin).expect("where the table begins");
    let (_, tail) = rest.split_once(end).expect("where it ends");
    let current = format!("{head}{begin}{}{end}{tail}", nccl::table());
    if std::env::var_os("ANNULUS_WRITE_README").is_some() {
        fs::write(readme, current).expect("write");
    } else {
        assert!(
            text == current,
            "run this test with ANNULUS_WRITE_README=1 to bring the table up to date"
        );
    }
}
