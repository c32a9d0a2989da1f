//! Prints the schema of configuration files, as `config/ekbatan.schema.json` holds it:
//!
//! ```text
//! cargo run --example config_schema > config/ekbatan.schema.json
//! ```

fn main() {
    println!("{:#}", ekbatan::config::json_schema());
}
