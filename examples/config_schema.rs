//! Prints the JSON schema of configuration files, which `config/ekbatan.schema.json`
//! contains:
//!
//! ```text
//! cargo run --example config_schema > config/ekbatan.schema.json
//! ```

fn main() {
    println!("{:#}", ekbatan::config::json_schema());
}
