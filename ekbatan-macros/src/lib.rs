//! The derives of ekbatan.
