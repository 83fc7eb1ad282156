//! Read, decide, execute; a lost race is read again and retried while the edit still makes sense (D-15).
