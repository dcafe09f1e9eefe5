// A link that did not let anybody in may still hold a token: it does not stay in the address bar.
"use strict";
if (location.search) history.replaceState(null, "", location.pathname);
