//! Generated code uses full paths, so a module may define types with any name.
#![deny(warnings, missing_docs, unreachable_pub)]

mod wallet {
    use ekbatan_core::domain::Id;
    use ekbatan_macros::{Entity, Event, Field, Model, State};

    #[allow(dead_code)]
    struct Result;
    #[allow(dead_code)]
    struct Vec;
    #[allow(dead_code)]
    struct Value;
    #[allow(dead_code)]
    struct FieldError;
    #[allow(dead_code, non_camel_case_types)]
    struct i64;

    #[derive(Debug, Clone, Model)]
    #[model(table = "wallets", event = self::WalletEvent)]
    pub(crate) struct Wallet {
        pub(super) id: Id<Self>,
        secret: Secret,
        value: std::option::Option<bool>,
        table: u8,
        state: WalletState,
    }

    #[derive(Debug, Clone, Entity)]
    #[entity(table = "plain")]
    pub(crate) struct Plain {
        id: Id<Plain>,
        state: WalletState,
    }

    #[derive(Debug, Clone, Field)]
    struct Secret(bool);

    #[derive(Debug, Clone, State)]
    #[allow(dead_code)]
    pub(crate) enum WalletState {
        Open = 1,
        Ok,
        Err,
        Deleted,
    }

    #[derive(Debug, Clone, serde::Serialize, Event)]
    #[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
    #[allow(dead_code)]
    pub(crate) enum WalletEvent {
        #[event(name = "Opened", version = 3)]
        Opened { name: bool },
        #[event(name = "Closed")]
        Closed,
    }

    pub(crate) fn wallet() -> Wallet {
        let id = Id::from_uuid(uuid::Uuid::nil());
        let plain = Plain { id: Id::from_uuid(uuid::Uuid::nil()), state: WalletState::Open };
        drop(plain.clone());
        Wallet { id, secret: Secret(true), value: None, table: 1, state: WalletState::Open }
    }
}

#[test]
fn names_of_a_module_may_shadow_those_of_the_prelude() {
    use ekbatan_core::domain::Entity;

    let wallet = wallet::wallet();
    let (_, _) = (wallet::Wallet::ID, wallet.id);
    assert_eq!(wallet.to_values().unwrap().len(), 5);
}
