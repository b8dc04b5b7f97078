// Light or dark, before anything is painted: this one is no module, since modules wait.
(() => {
  const KEY = "millstream.theme";
  const CHOICES = ["system", "light", "dark"];

  function stored() {
    try {
      const found = localStorage.getItem(KEY);
      return CHOICES.includes(found) ? found : "system";
    } catch {
      return "system"; // A browser may keep pages from storing anything.
    }
  }

  function choose(choice) {
    document.documentElement.dataset.theme = choice;
    try {
      localStorage.setItem(KEY, choice);
    } catch {
      // It lasts as long as the page does, then.
    }
  }

  document.documentElement.dataset.theme = stored();
  window.millstreamTheme = {
    now: () => document.documentElement.dataset.theme,
    turn() {
      choose(CHOICES[(CHOICES.indexOf(this.now()) + 1) % CHOICES.length]);
      return this.now();
    },
  };
})();
