//! Build script: compiles the program in C of the feature `c`, with clang, which knows every core.

fn main() {
    #[cfg(feature = "c")]
    compile("../../capi");
}

/// Compiles the example for boards in the folder of the interface to C.
#[cfg(feature = "c")]
fn compile(interface: &str) {
    let example = format!("{interface}/examples/board");
    println!("cargo::rerun-if-changed={example}");
    println!("cargo::rerun-if-changed={interface}/include");
    println!("cargo::rerun-if-env-changed=FEDSPAN_CC");
    let compiler = std::env::var("FEDSPAN_CC").unwrap_or_else(|_| "clang".to_owned());
    cc::Build::new()
        .compiler(compiler)
        .std("c11")
        .opt_level_str("s")
        .warnings_into_errors(true)
        .extra_warnings(true)
        .flag("-ffreestanding")
        .include(format!("{interface}/include"))
        .include(&example)
        .file(format!("{example}/main.c"))
        .compile("fedspan-c-example");
}
